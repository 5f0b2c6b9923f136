"""Plant every bug of the catalogue, one at a time, and run the test that must catch it: `python -m tests.mutants.run`.

    all killers pass on the sources as they are
    then, two at a time: copy the sources ─▶ plant one bug ─▶ run its killers there ─▶ they must fail

One PostgreSQL serves all; each run makes its own template in it, because the bug may be in the migration. Ends with 1
when a mutant lived, fell to anything but a test's own judgement, or does not fit the sources any more.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg

from tenure.embedded import Cluster
from tests.mutants import witness
from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import ROOT, SOUNDNESS, SOURCES, Misfit, Mutant

_PATIENCE_S = 600
_PASSED, _FAILED = 0, 1  # pytest's exit codes: tests ran, and all passed or some failed

#: What a test may fail by and have judged: its own assertion, or an error with a type of ours or of the database.
_JUDGED = ("builtins.AssertionError", "builtins.Failed", "tenure.errors.", "psycopg.Error")
#: Statements that PostgreSQL could make no sense of: such a bug needs no test to be found.
_SENSELESS = ("42601", "42703", "42P01", "42P02", "42804", "42883", "42702")


@dataclass
class Run:
    """What one pytest run on some sources came to."""

    code: int
    output: str
    testimony: list[dict[str, Any]] = field(default_factory=list)

    def of(self, node: str) -> list[dict[str, Any]]:
        """What was seen of a test, under any of its parameters."""
        return [seen for seen in self.testimony if seen["node"] == node or seen["node"].startswith(f"{node}[")]


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: who killed it, or why it lives."""

    mutant: Mutant
    killed: bool
    by: str
    seconds: float


class Stage:
    """A PostgreSQL, a place for copies of the sources, and the runs on them."""

    def __init__(self, place: Path, server: str) -> None:
        self.place, self.server = place, server
        self.running: set[subprocess.Popen[str]] = set()

    def copy(self, name: str) -> Path:
        """A copy of the unmutated sources, compiled as far as those are."""
        made = self.place / name
        kept = self.place / "unmutated" / "src"
        shutil.copytree(kept if kept.exists() else SOURCES, made / "src")
        return made

    def test(self, made: Path, nodes: Iterable[str], *options: str) -> Run:
        """Run these tests on the sources in that place."""
        told = made / "testimony"
        told.touch()
        template = f"template_{uuid4().hex[:12]}"
        environment = {
            "TENURE_TEST_DATABASE_URL": self.server,
            "TENURE_TEST_TEMPLATE": template,
            witness.SOURCES: str(made / "src"),
            witness.TESTIMONY: str(told),
        }
        given = ["-q", "-p", "tests.mutants.witness", "-p", "no:cacheprovider", f"--basetemp={made / 'temporary'}"]
        # Longer than any test waits for a condition: one that gives up has judged, one that is stopped has not.
        command = ["-m", "pytest", *given, "--timeout=110", "--tb=short", *options, *nodes]
        code, output = self.python(made, *command, **environment)
        with psycopg.connect(self.server, autocommit=True) as connection:
            connection.execute(f"drop database if exists {template} with (force)".encode())
        return Run(code, output, [json.loads(line) for line in told.read_text().splitlines()])

    def python(self, made: Path, *arguments: str, **extra: str) -> tuple[int, str]:
        """Run Python on the sources in that place."""
        environment = {**os.environ, **extra, "PYTHONPATH": str(made / "src")}
        environment.pop("TENURE_PROVEN", None)  # what passes on mutated sources proves nothing
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.running.add(process)
        try:
            output, _ = process.communicate(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            output = process.communicate()[0] + f"\nstopped after {_PATIENCE_S} seconds"
        except BaseException:
            process.terminate()
            process.wait()
            raise
        finally:
            self.running.discard(process)
        return process.returncode, output

    def stop(self) -> None:
        """End what still runs."""
        for process in list(self.running):
            process.terminate()

    def judge(self, mutant: Mutant) -> Verdict:
        """Plant a mutant and let its killers at it."""
        begun = time.monotonic()
        made = self.copy(mutant.name)
        mutant.plant(made / "src")
        if SOUNDNESS in mutant.killers:
            killed, by = _refused(*self.python(made, "-c", "import tenure.contracts"))
        else:
            run = self.test(made, mutant.nodes, *["-x"] * (len(mutant.nodes) == 1))
            faults = [fault for node in mutant.nodes if (fault := lives(run, node))]
            killed, by = not faults, "; ".join(faults) if faults else killers(mutant)
        shutil.rmtree(made)
        return Verdict(mutant, killed, by, time.monotonic() - begun)


def lives(run: Run, node: str) -> str | None:
    """Why this test did not kill a mutant; None when it did: it ran, and failed by its own judgement."""
    seen = [each for each in run.testimony if each["phase"] == "collect"]
    if seen or run.code not in (_PASSED, _FAILED):
        return f"LIVES: the tests could not be run (exit code {run.code})\n{run.output}"
    called = [each for each in run.of(node) if each["phase"] == "call"]
    failed = [each for each in called if each["outcome"] == "failed"]
    if any(is_judgement(each) for each in failed):
        return None
    if failed:
        error = failed[0]["errors"][0]
        return f"LIVES: {node} fell over, which is no judgement: {error['kinds'].split()[0]} {error['text']}"
    return f"LIVES: {node} passed" if called else f"LIVES: {node} did not get to run\n{run.output}"


def is_judgement(failed: dict[str, Any]) -> bool:
    """Whether a test failed because of what the program did, and not because it is none any more."""
    errors = failed["errors"]
    raised = errors[0]
    if any(error["sqlstate"] in _SENSELESS for error in errors) or raised["text"].startswith("Timeout"):
        return False
    in_a_test = Path(failed["where"]).is_relative_to(ROOT / "tests")
    # `(one,) = answers` in a test says how many there must be, and `process.wait(60)` that the process must end.
    counted = "values to unpack" in raised["text"] and in_a_test
    never_ended = "subprocess.TimeoutExpired" in raised["kinds"]
    return counted or never_ended or any(kind in raised["kinds"] for kind in _JUDGED)


def _refused(code: int, output: str) -> tuple[bool, str]:
    said = output.strip().split("\n")
    if code != 0 and any(line.startswith("tenure.errors.Unsound:") for line in said):
        return True, "soundness, at import"
    return False, f"LIVES: the contract was not refused as unsound (exit code {code})\n{output}"


def killers(mutant: Mutant) -> str:
    """Who kills it, in short."""
    return ", ".join(mutant.killers)


def unmutated(stage: Stage, mutants: Sequence[Mutant]) -> str | None:
    """What is wrong on the sources as they are, where every killer must pass."""
    nodes = list(dict.fromkeys(node for mutant in mutants for node in mutant.nodes))
    made = stage.copy("unmutated")
    if not nodes:
        return None
    run = stage.test(made, nodes, "-n", "2") if len(nodes) > 4 else stage.test(made, nodes)
    idle = [node for node in nodes if not any(each["phase"] == "call" for each in run.of(node))]
    if run.code == _PASSED and not idle:
        return None
    return f"on the sources as they are, killers fail or do not run ({', '.join(idle) or 'see below'})\n{run.output}"


@contextmanager
def staged(server: str | None) -> Iterator[Stage]:
    """A stage, and nothing of it afterwards."""
    with tempfile.TemporaryDirectory(prefix="tenure-mutants-") as directory:
        place = Path(directory)
        if server:
            yield Stage(place, server)
            return
        # Nothing here has to outlive the machine.
        with Cluster(place / "cluster", settings={"fsync": "off", "max_connections": "300"}) as cluster:
            yield Stage(place, cluster.dsn)


def judged(stage: Stage, mutants: Sequence[Mutant], at_once: int) -> list[Verdict]:
    """Judge them, some at once, and say each verdict as it falls."""
    verdicts = []
    with ThreadPoolExecutor(at_once) as pool:
        try:
            for verdict in pool.map(stage.judge, mutants):
                said = "killed" if verdict.killed else verdict.by
                print(f"{verdict.mutant.name} ({verdict.seconds:.1f} s): {said}", file=sys.stderr, flush=True)
                verdicts.append(verdict)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            stage.stop()
            raise
    return verdicts


def table(verdicts: Sequence[Verdict]) -> str:
    """The verdicts, a line each."""
    rows = [("mutant", "where", "killed by", "seconds")]
    rows += [
        (v.mutant.name, f"{v.mutant.file}:{v.mutant.line()}", v.by.split("\n")[0], f"{v.seconds:.1f}") for v in verdicts
    ]
    widths = [max(len(row[n]) for row in rows) for n in range(4)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def markdown(mutants: Sequence[Mutant]) -> str:
    """The catalogue as a page shows it: what is wrong in words, and no seconds, which would change with every run."""
    lines = ["| mutant | where | killed by |", "|---|---|---|"]
    for mutant in mutants:
        by = ", ".join(_in_words(killer) for killer in mutant.killers)
        lines.append(f"| {mutant.wrong} (`{mutant.name}`) | `{mutant.file}` | {by} |")
    return "\n".join(lines)


def _in_words(killer: str) -> str:
    if killer == SOUNDNESS:
        return "soundness: refused at import"
    file, _, test = killer.partition("::")
    return f"`{test.partition('[')[0].removeprefix('test_')}` in `tests/{file}`"


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the mutants; 1 when one lives."""
    asked = argparse.ArgumentParser(prog="python -m tests.mutants.run", description=str(__doc__).split("\n")[0])
    asked.add_argument("--only", metavar="NAME", action="append", help="judge this mutant (may be given again)")
    asked.add_argument("--markdown", action="store_true", help="print the catalogue as a page shows it; judge nothing")
    asked.add_argument("--at-once", type=int, default=2, metavar="N", help="how many at a time (2)")
    asked.add_argument("--server", metavar="DSN", help="a PostgreSQL to use, instead of one of our own")
    given = asked.parse_args(arguments)
    if unknown := set(given.only or ()) - {mutant.name for mutant in MUTANTS}:
        asked.error(f"there is no mutant {', '.join(sorted(unknown))}")
    mutants = [mutant for mutant in MUTANTS if given.only is None or mutant.name in given.only]
    if given.markdown:
        print(markdown(mutants))
        return 0
    try:
        for mutant in mutants:
            mutant.line()
    except Misfit as misfit:
        print(misfit, file=sys.stderr)
        return 1
    begun = time.monotonic()
    with staged(given.server) as stage:
        if fault := unmutated(stage, mutants):
            print(fault, file=sys.stderr)
            return 1
        verdicts = judged(stage, mutants, given.at_once)
    print(table(verdicts))
    for verdict in verdicts:
        if not verdict.killed:
            print(f"\n{verdict.mutant.name}: {verdict.mutant.wrong}\n{verdict.by}")
    killed = sum(verdict.killed for verdict in verdicts)
    print(f"\n{killed} of {len(verdicts)} mutants killed in {time.monotonic() - begun:.0f} seconds")
    return int(killed < len(verdicts))


if __name__ == "__main__":
    # Ends through `finally`, so that the PostgreSQL and the copies do not stay.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
