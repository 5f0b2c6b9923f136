"""Whoever we are, the server runs as somebody PostgreSQL accepts."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.embedded import Cluster, StartFailed
from tests.embedded.conftest import Ask, Postmaster
from tests.embedded.holders import Holder

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root is refused by PostgreSQL")
NOBODY = pwd.getpwnam("nobody").pw_uid
NAMELESS = 54321


def block(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program that always fails in front of the real one, as a container does with namespaces."""
    fakes = tmp_path / "fakes"
    fakes.mkdir(exist_ok=True)
    (fakes / program).write_text("#!/bin/sh\necho blocked >&2; exit 1\n")
    (fakes / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{fakes}{os.pathsep}{os.environ['PATH']}")


def uid_of(pid: int) -> int:
    """Give the uid a process has outside of any namespace."""
    return Path(f"/proc/{pid}").stat().st_uid


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user can reach, which pytest's own are not."""
    made = Path(tempfile.mkdtemp(prefix="tenure-test-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def home_of(uid: int, parent: Path, binaries: Path) -> Path:
    """Make a directory of a user's own; skips when the programs are in a home closed to them."""
    program = ["test", "-x", str(binaries / "postgres")]
    if subprocess.run(program, user=uid, group=uid, extra_groups=[], cwd="/").returncode != 0:
        pytest.skip("an ordinary user cannot reach these programs")
    directory = parent / "cluster"
    directory.mkdir(mode=0o700)
    os.chown(directory, uid, uid)
    return directory


@root_only
def test_root_runs_the_server_in_a_user_namespace(directory: Path, binaries: Path, postmaster: Postmaster) -> None:
    directory.parent.chmod(0o700)
    with Cluster(directory, binaries=binaries):
        pid = postmaster(directory)
        assert uid_of(pid) == 0
        assert os.readlink(f"/proc/{pid}/ns/user") != os.readlink("/proc/self/ns/user")
        mapped = Path(f"/proc/{pid}/uid_map").read_text().split()
        # initdb looks its user up by name: a mapped uid that is not in the passwd file would be refused.
        assert pwd.getpwuid(int(mapped[0])).pw_uid == int(mapped[0]) != 0


@root_only
def test_root_without_namespaces_becomes_nobody_even_behind_a_closed_parent(
    tmp_path: Path, binaries: Path, ask: Ask, postmaster: Postmaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "bin").symlink_to(binaries)
    with monkeypatch.context() as blocked:
        block("unshare", tmp_path, blocked)
        with Cluster(closed / "cluster", binaries=closed / "bin") as cluster:
            assert uid_of(postmaster(cluster.directory)) == NOBODY
            ask(cluster.dsn, "create table kept as select 7 as answer")
        assert postmaster(cluster.directory) == 0
    assert (closed.stat().st_mode & 0o777, closed.stat().st_uid) == (0o700, 0), "the parent was opened"
    # Namespaces come back: the data still belongs to nobody, who goes on serving it.
    with cluster:
        assert uid_of(postmaster(cluster.directory)) == NOBODY
        assert ask(cluster.dsn, "select answer from kept") == "7"


@root_only
def test_data_made_in_a_namespace_moves_to_a_machine_that_blocks_them(
    tmp_path: Path, wheel: Path, ask: Ask, postmaster: Postmaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path / "cluster", binaries=wheel)
    with cluster:
        ask(cluster.dsn, "create table kept as select 7 as answer")
    block("unshare", tmp_path, monkeypatch)
    with cluster:
        assert uid_of(postmaster(cluster.directory)) == NOBODY
        assert {path.stat().st_uid for path in (cluster.directory / "data").rglob("*.conf")} == {NOBODY}
        assert ask(cluster.dsn, "select answer from kept") == "7"


@root_only
def test_root_with_no_way_out_is_refused_and_told_why(
    tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block("unshare", tmp_path, monkeypatch)
    block("setpriv", tmp_path, monkeypatch)
    with pytest.raises(StartFailed, match="refuses to run as root"):
        Cluster(tmp_path / "cluster", binaries=wheel).acquire()


@root_only
def test_an_ordinary_user_needs_nothing_and_root_serves_them_under_their_name(
    open_directory: Path, binaries: Path, ask: Ask, postmaster: Postmaster
) -> None:
    directory = home_of(NOBODY, open_directory, binaries)
    with Holder(directory, binaries, become=NOBODY) as holder:
        dsn = holder.dsn()
        assert uid_of(postmaster(directory)) == NOBODY
        pid = postmaster(directory)
        assert os.readlink(f"/proc/{pid}/ns/user") == os.readlink("/proc/self/ns/user")
        assert ask(dsn, "select 1") == "1"
        holder.release()
    assert postmaster(directory) == 0
    with Cluster(directory, binaries=binaries):
        assert uid_of(postmaster(directory)) == NOBODY


@root_only
def test_a_user_without_a_name_borrows_one(open_directory: Path, wheel: Path, ask: Ask, postmaster: Postmaster) -> None:
    directory = home_of(NAMELESS, open_directory, wheel)
    with Holder(directory, wheel, become=NAMELESS) as holder:
        assert ask(holder.dsn(), "select 1") == "1"
        assert uid_of(postmaster(directory)) == NAMELESS
        holder.release()
    assert postmaster(directory) == 0
