"""Holders and servers are killed; the next acquire or release copes."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tenure.embedded import Cluster, server
from tests.embedded.conftest import Ask, Postmaster
from tests.embedded.holders import Holder

#: Lives until there is this file in the data directory, and does not notice that its server is gone.
BUSY = "do $$ begin while (pg_stat_file('go', true)).size is null loop end loop; end $$"


def once(condition: str, action: str) -> subprocess.Popen[bytes]:
    """A process that does something as soon as a condition of the shell is true."""
    return subprocess.Popen(["sh", "-c", f"until {condition}; do sleep 0.02; done; {action}"])


def test_a_killed_holder_no_longer_counts(directory: Path, binaries: Path, postmaster: Postmaster) -> None:
    with Holder(directory, binaries) as killed, Holder(directory, binaries) as survivor:
        killed.dsn()
        survivor.dsn()
        killed.kill()
        assert postmaster(directory) != 0
        survivor.release()
        assert postmaster(directory) == 0


def test_a_server_nobody_holds_is_joined_and_then_stopped(
    directory: Path, binaries: Path, postmaster: Postmaster
) -> None:
    with Holder(directory, binaries) as holder:
        holder.dsn()
        orphaned = postmaster(directory)
        holder.kill()
    assert postmaster(directory) == orphaned
    with Cluster(directory, binaries=binaries):
        assert postmaster(directory) == orphaned
    assert postmaster(directory) == 0


def test_a_killed_server_is_started_again_though_its_children_linger(
    directory: Path, binaries: Path, ask: Ask, postmaster: Postmaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for deadline in ("START_TIMEOUT_S", "ORPHANS_TIMEOUT_S"):
        monkeypatch.setattr(server, deadline, 100.0)
    log, go = directory / "log", directory / "data" / "go"
    with Holder(directory, binaries) as holder:
        dsn = holder.dsn()
        ask(dsn, "drop table if exists committed; create table committed as select 7 as answer")
        killed = postmaster(directory)
        lines = (directory / "data" / "postmaster.pid").read_text().splitlines()
        busy = subprocess.Popen(
            [binaries / "psql", dsn, "-X", "-c", BUSY], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        give_up = time.monotonic() + 60
        while ask(dsn, "select count(*) from pg_stat_activity where query like 'do %'") != "1":
            assert time.monotonic() < give_up
        in_use = "pre-existing shared memory block"
        refused = log.read_text().count(in_use)
        leaving = once(f"[ $(grep -c '{in_use}' {log}) -gt {refused} ]", f"touch {go}")
        os.kill(killed, signal.SIGKILL)
        with Cluster(directory, binaries=binaries) as cluster:
            assert postmaster(directory) not in (0, killed)
            assert lines[6] not in (directory / "data" / "postmaster.pid").read_text(), "an orphan's memory was shared"
            assert ask(cluster.dsn, "select answer from committed") == "7"
        leaving.wait(60)
        busy.wait(60)
        go.unlink()
        assert postmaster(directory) != 0, "the first holder holds the new server"
        holder.release()
        assert postmaster(directory) == 0


@pytest.mark.parametrize("kind", ["living", "zombie"])
def test_a_stale_pid_file_naming_a_stranger_is_forgotten(
    kind: str, directory: Path, binaries: Path, ask: Ask, postmaster: Postmaster
) -> None:
    with Cluster(directory, binaries=binaries):
        lines = (directory / "data" / "postmaster.pid").read_text().splitlines()
    stranger = subprocess.Popen(["sleep", "600"])
    if kind == "zombie":
        stranger.kill()
        os.waitid(os.P_PID, stranger.pid, os.WEXITED | os.WNOWAIT)
    try:
        (directory / "data" / "postmaster.pid").write_text("\n".join([str(stranger.pid), *lines[1:]]) + "\n")
        with Cluster(directory, binaries=binaries) as cluster:
            assert ask(cluster.dsn, "select 1") == "1"
        assert kind == "zombie" or stranger.poll() is None, "the stranger was stopped in the server's place"
    finally:
        stranger.kill()
        stranger.wait()


def test_a_stranger_is_never_signalled_by_release(directory: Path, binaries: Path) -> None:
    with Cluster(directory, binaries=binaries) as cluster:
        file = directory / "data" / "postmaster.pid"
        content = file.read_text()
        stranger = subprocess.Popen(["sleep", "600"])
        file.write_text(content.replace(content.splitlines()[0], str(stranger.pid), 1))
        cluster.release()
        assert stranger.poll() is None
        stranger.kill()
        stranger.wait()
        file.write_text(content)
        cluster.acquire()


#: The one connection that a test has left idle: another's may be gone a moment later.
_IDLE = "select pid from pg_stat_activity where state = 'idle' and application_name = 'left idle'"


def idle_psql(binaries: Path, dsn: str) -> subprocess.Popen[str]:
    """Somebody who is connected and says nothing."""
    environment = {**os.environ, "PGAPPNAME": "left idle"}
    return subprocess.Popen([binaries / "psql", dsn, "-X"], stdin=subprocess.PIPE, text=True, env=environment)


def test_a_server_still_stopping_is_waited_for(
    directory: Path, binaries: Path, tmp_path: Path, ask: Ask, postmaster: Postmaster
) -> None:
    for program in ("postgres", "initdb"):
        (tmp_path / program).symlink_to(binaries / program)
    (asked := tmp_path / "asked").touch()
    (tmp_path / "pg_isready").write_text(f'#!/bin/sh\necho asked >> {asked}\nexec {binaries}/pg_isready "$@"\n')
    (tmp_path / "pg_isready").chmod(0o755)
    with Holder(directory, binaries) as holder:
        dsn = holder.dsn()
        stopping = postmaster(directory)
        backend = idle_psql(binaries, dsn)
        deadline = time.monotonic() + 60
        while not (frozen := ask(dsn, _IDLE)):
            assert time.monotonic() < deadline
        os.kill(int(frozen), signal.SIGSTOP)
        # What a last release does, killed half way.
        os.kill(stopping, signal.SIGINT)
        holder.kill()
    # Who asks for the second time waits for the server that is stopping.
    thaw = once(f"[ $(wc -l < {asked}) -ge 2 ]", f"kill -CONT {frozen}")
    told = (directory / "log").read_text()
    with Cluster(directory, binaries=tmp_path) as cluster:
        assert postmaster(directory) not in (0, stopping)
        assert "already exists" not in (directory / "log").read_text().removeprefix(told)
        assert ask(cluster.dsn, "select 1") == "1"
    thaw.wait()
    backend.communicate()


def test_a_server_that_will_not_stop_is_stopped_immediately(
    tmp_path: Path, wheel: Path, ask: Ask, postmaster: Postmaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "STOP_TIMEOUT_S", 0.2)
    monkeypatch.setattr(server, "IMMEDIATE_STOP_TIMEOUT_S", 100.0)
    cluster = Cluster(tmp_path, binaries=wheel)
    cluster.acquire()
    backend = idle_psql(wheel, cluster.dsn)
    deadline = time.monotonic() + 60
    while not (frozen := ask(cluster.dsn, _IDLE)):
        assert time.monotonic() < deadline
    os.kill(int(frozen), signal.SIGSTOP)
    # PostgreSQL kills the frozen backend itself, 5 seconds later: we need not wait for that.
    thaw = once(f"grep -q 'immediate shutdown request' {tmp_path / 'log'}", f"kill -CONT {frozen}")
    cluster.release()
    thaw.wait()
    backend.communicate()
    assert postmaster(tmp_path) == 0
    assert "immediate shutdown request" in (tmp_path / "log").read_text()
