"""Processes share a cluster: the first starts it, the last stops it."""

import os
import signal
import stat
from pathlib import Path

import pytest

from tenure.embedded import Cluster, StartFailed, server
from tests.embedded.conftest import Ask, Postmaster
from tests.embedded.holders import Holder


def test_the_server_is_durable_utf8_and_off_the_network(directory: Path, binaries: Path, ask: Ask) -> None:
    with Cluster(directory, binaries=binaries, settings={"work_mem": "5MB"}) as cluster:
        assert cluster.dsn.startswith("postgresql://")
        names = (
            "server_encoding",
            "listen_addresses",
            "fsync",
            "synchronous_commit",
            "max_connections",
            "work_mem",
        )
        shown = [ask(cluster.dsn, f"show {name}") for name in names]
        assert shown == ["UTF8", "", "on", "on", "200", "5MB"]
        assert ask(cluster.dsn, "select current_database()") == "postgres"
        assert ask(cluster.dsn, "select datcollate from pg_database where datname = 'postgres'") == "C"
    assert stat.S_IMODE((directory / "data").stat().st_mode) == 0o700
    assert (directory / ".gitignore").read_text() == "*\n"
    assert "database system is shut down" in (directory / "log").read_text()


def test_four_processes_racing_on_a_fresh_directory_make_one_cluster(
    tmp_path: Path, binaries: Path, ask: Ask, postmaster: Postmaster
) -> None:
    (tmp_path / "initdb-abandoned").mkdir()
    racers = [Holder(tmp_path, binaries) for _ in range(4)]
    try:
        dsns = {racer.dsn() for racer in racers}
        assert len(dsns) == 1
        dsn = dsns.pop()
        started = postmaster(tmp_path)
        assert (tmp_path / "log").read_text().count("starting PostgreSQL") == 1
        assert not list(tmp_path.glob("initdb-*"))
        for racer in racers[:3]:
            racer.release()
            assert ask(dsn, "select 1") == "1"
            assert postmaster(tmp_path) == started
        racers[3].release()
        assert postmaster(tmp_path) == 0
        assert not (tmp_path / "data" / "postmaster.pid").exists()
    finally:
        for racer in racers:
            racer.__exit__()


def test_rows_survive_the_last_release(directory: Path, binaries: Path, ask: Ask) -> None:
    with Cluster(directory, binaries=binaries) as cluster:
        ask(cluster.dsn, "drop table if exists kept; create table kept as select 7 as answer")
    with Cluster(directory, binaries=binaries) as cluster:
        assert ask(cluster.dsn, "select answer from kept") == "7"


def test_one_process_may_hold_many_times(directory: Path, binaries: Path, postmaster: Postmaster) -> None:
    outer, other = Cluster(directory, binaries=binaries), Cluster(directory, binaries=binaries)
    with outer:
        with outer, other:
            started = postmaster(directory)
        assert postmaster(directory) == started != 0
    assert postmaster(directory) == 0
    with pytest.raises(RuntimeError, match="released more often"):
        outer.release()


def test_the_server_leaves_our_terminal_and_our_locks_alone(
    directory: Path, binaries: Path, ask: Ask, postmaster: Postmaster
) -> None:
    with Holder(directory, binaries, start_new_session=True) as holder:
        dsn = holder.dsn()
        pid = postmaster(directory)
        # A child of the holder's would stay a zombie after a kill, as long as the holder lives.
        assert f"PPid:\t{holder.process.pid}\n" not in Path(f"/proc/{pid}/status").read_text()
        assert os.getsid(pid) not in (os.getsid(0), os.getsid(holder.process.pid))
        opened = {os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
        assert str(directory / "log") in opened
        assert not opened & {str(directory / "lock"), str(directory / "gate")}
        # Ctrl-C goes to the whole foreground group of the holder's terminal.
        os.killpg(holder.process.pid, signal.SIGINT)
        holder.process.wait(60)
        assert ask(dsn, "select 1") == "1"
        assert postmaster(directory) == pid
    with Cluster(directory, binaries=binaries):
        pass
    assert postmaster(directory) == 0


def test_a_forked_child_neither_stops_the_server_nor_keeps_it_up(
    directory: Path, binaries: Path, postmaster: Postmaster
) -> None:
    with Holder(directory, binaries) as holder:
        holder.dsn()
        child = holder.fork()
        try:
            assert postmaster(directory) != 0
            with Cluster(directory, binaries=binaries):
                pass
            assert postmaster(directory) != 0, "the child's release took its parent's lock"
            holder.release()
            assert postmaster(directory) == 0
            # The child still has a copy of the descriptor: it must not be a lock any more.
            with Cluster(directory, binaries=binaries):
                pass
            assert postmaster(directory) == 0
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_long_path_gets_a_short_private_socket(tmp_path: Path, binaries: Path, ask: Ask) -> None:
    directory = tmp_path / ("long" * 30)
    with Cluster(directory, binaries=binaries) as cluster, Holder(directory, binaries) as holder:
        assert holder.dsn() == cluster.dsn
        socket_directory = Path(ask(cluster.dsn, "show unix_socket_directories"))
        assert socket_directory.name.startswith("tenure-")
        assert stat.S_IMODE(socket_directory.stat().st_mode) == 0o700
        holder.release()
    assert not socket_directory.exists()
    socket_directory.mkdir()
    socket_directory.chmod(0o777)
    (socket_directory / "trap").touch()
    with pytest.raises(StartFailed, match="not private"):
        Cluster(directory, binaries=binaries).acquire()
    (socket_directory / "trap").unlink()
    socket_directory.rmdir()


def test_a_server_that_gives_up_shows_its_log_at_once(
    directory: Path, binaries: Path, postmaster: Postmaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "START_TIMEOUT_S", 3_600.0)  # nobody waits for that
    with pytest.raises(StartFailed, match='parameter "shared_buffers"'):
        Cluster(directory, binaries=binaries, settings={"shared_buffers": "plenty"}).acquire()
    with Cluster(directory, binaries=binaries):
        assert postmaster(directory)


def test_a_server_that_never_answers_is_stopped_at_the_deadline(
    directory: Path, binaries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postmaster: Postmaster
) -> None:
    with Cluster(directory, binaries=binaries):
        pass
    for program in ("postgres", "initdb"):
        (tmp_path / program).symlink_to(binaries / program)
    # The server is asked when it is up, and has not answered when the deadline is over.
    ready = "ready to accept connections"
    before = (directory / "log").read_text().count(ready)
    up = f"until [ $(grep -c '{ready}' {directory / 'log'}) -gt {before} ]; do sleep 0.05; done"
    (tmp_path / "pg_isready").write_text(f"#!/bin/sh\n{up}; sleep 0.5; exit 2\n")
    (tmp_path / "pg_isready").chmod(0o755)
    monkeypatch.setattr(server, "START_TIMEOUT_S", 0.5)
    with pytest.raises(StartFailed, match="did not answer") as refused:
        Cluster(directory, binaries=tmp_path).acquire()
    assert "database system is ready to accept connections" in str(refused.value)
    assert postmaster(directory) == 0


def test_another_version_is_refused_with_both_named(directory: Path, binaries: Path) -> None:
    with Cluster(directory, binaries=binaries):
        pass
    version = directory / "data" / "PG_VERSION"
    made_by = version.read_text()
    version.write_text("9.6\n")
    try:
        with pytest.raises(StartFailed, match=r"initialized by PostgreSQL version 9\.6, .* version \d+"):
            Cluster(directory, binaries=binaries).acquire()
    finally:
        version.write_text(made_by)
