"""Installs each peer into its own environment, `.bench/NAME`, at its first use; a second run needs no network.

A peer that cannot be installed is reported with the reason, and the run goes on without it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.comparison.peers import Peer

ROOT = Path(__file__).resolve().parents[2]
_PLACE = ROOT / ".bench"
_WITHIN_S = 600


class Missing(Exception):
    """Something cannot be installed on this machine; its text says why."""


def command(peer: Peer) -> list[str]:
    """How this peer's adapter is run; installs the peer when it is not there. Refuses with Missing."""
    if not peer.packages:
        return [sys.executable, "-m", f"bench.adapters.{peer.module}"]
    place = _PLACE / peer.name
    wanted = "\n".join(peer.packages)
    stamp = place / "installed"
    if not stamp.exists() or stamp.read_text() != wanted:
        sys.stderr.write(f"installing {' '.join(peer.packages)} …\n")
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        if peer.language == "node":
            _install_for_node(peer, place)
        else:
            _install_for_python(peer, place)
        stamp.write_text(wanted)
    if peer.language == "node":
        return [_found("node"), str(ROOT / "bench" / "adapters" / f"{peer.module}.mjs")]
    return [str(place / "bin" / "python"), "-m", f"bench.adapters.{peer.module}"]


def environment(peer: Peer) -> dict[str, str]:
    """What its processes shall find in the environment."""
    return {**os.environ, "BENCH_PEER": str(_PLACE / peer.name), "PYTHONPATH": _source() if not peer.packages else ""}


def redis_server() -> str:
    """The program; installed from Debian's packages when it is missing and that is possible. Refuses with Missing."""
    if found := shutil.which("redis-server"):
        return found
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise Missing("there is no redis-server (Debian: apt-get install redis-server)")
    sys.stderr.write("installing redis-server …\n")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update"], ["install", "-y", "--no-install-recommends", "redis-server"]):
        _run(["apt-get", "-qq", *arguments], quiet)
    return _found("redis-server")


def _install_for_python(peer: Peer, place: Path) -> None:
    _run([_python(peer.python), "-m", "venv", str(place)])
    _run([str(place / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", *peer.packages])


def _install_for_node(peer: Peer, place: Path) -> None:
    _found("node")
    (place / "package.json").write_text('{"private": true}\n')
    quiet = ["--no-audit", "--no-fund", "--loglevel=error", "--save-exact"]
    _run([_found("npm"), "install", "--prefix", str(place), *quiet, *peer.packages])


def _python(oldest: tuple[int, int]) -> str:
    """This Python when it is new enough, or another one of this machine that is."""
    if sys.version_info[:2] >= oldest:
        return sys.executable
    by_pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    names = [f"python3.{minor}" for minor in range(oldest[1] + 5, oldest[1] - 1, -1)]
    candidates = [shutil.which(name) for name in names]
    candidates += [str(path) for name in names for path in by_pyenv.glob(f"*/bin/{name}")]
    for candidate in filter(None, candidates):
        # A pyenv shim is on the PATH whether or not it leads anywhere: try it first.
        if subprocess.call([candidate, "-c", ""], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0:
            return candidate
    raise Missing(f"it needs Python {oldest[0]}.{oldest[1]} or newer, and there is none here")


def _found(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise Missing(f"there is no {program} on this machine")
    return found


def _source() -> str:
    """Where Tenure itself was imported from: its adapter shall measure the same tree."""
    import tenure

    return str(Path(tenure.__file__).resolve().parents[1])


def _run(command: list[str], environment: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_WITHIN_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(str(error)) from error
    if done.returncode != 0:
        output = [line for line in done.stdout.strip().splitlines() if line.strip()]
        raise Missing(f"{Path(command[0]).name} failed: {output[-1] if output else done.returncode}")
