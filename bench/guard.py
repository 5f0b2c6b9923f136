"""Does a verb do more work than recorded? Compares plans and counted work, never seconds.

    ./dev bench guard             the table, and every figure above its record (then the exit code is 1)
    ./dev bench guard --record    write the counts to bench/guard.json, for every PostgreSQL on this machine

The tables hold 20,000 ready and 20,000 finished jobs with their log. Counted for each verb, per job: statements, rows
read, index entries read, page accesses and WAL bytes; and the nodes of the plans. For the life of 500 jobs through the
real worker: statements, commits and WAL bytes. `statement_counts.py` describes the method. `./dev test` runs it too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bench.guard_steps import Figures, Seen, server
from tenure.embedded import binaries, find_binaries

RECORD = Path(__file__).with_name("guard.json")
_HOT = ("job", "job_done", "event", "claim")

_WHY = (
    "Written by ./dev bench guard --record. Rows, index entries, pages and WAL bytes are a job, the rest is a step. "
    "Less is fine. Of a batch more than 5 % more fails: it is the same each time, and one more index is about 10 %. Of "
    "single jobs, questions and the worker's life more than 15 %: where rows lie, and how large a worker's batches "
    "are, differs a little. Plans must be the same. Whoever records anew says in the commit why."
)
#: A figure may be so much above what is recorded: this share of it, in a batch and elsewhere, and this much in all.
_MORE_OF_A_BATCH, _MORE = 0.05, 0.15
_ANYWAY = {"statements": 0, "commits": 0, "rows": 2, "entries": 2, "pages": 2, "wal_bytes": 512}
#: The sizes of a worker's batches depend a little on the machine's mood.
_MOODS = 4


# ------------------------------------------------------------------------------------------------- what is recorded


def recorded(version: int) -> tuple[int, Seen]:
    """What is recorded for a major version, or for the one before it that is; which one that is."""
    versions = json.loads(RECORD.read_text())["postgres"]
    known = sorted(map(int, versions))
    family = max((one for one in known if one <= version), default=known[0])
    return family, Seen(**versions[str(family)])


def record(found: Mapping[int, Seen]) -> None:
    """Write what was counted; versions that were not found here keep theirs."""
    versions = json.loads(RECORD.read_text())["postgres"] if RECORD.exists() else {}
    versions |= {str(version): {"work": seen.work, "plans": seen.plans} for version, seen in found.items()}
    text = json.dumps({"why": _WHY, "postgres": dict(sorted(versions.items()))}, indent=1, ensure_ascii=False)
    # A step's figures on one line.
    RECORD.write_text(re.sub(r"\{[^{}\[\]]*\}", lambda match: re.sub(r"\n\s*", " ", match[0]), text) + "\n")


def worse(was: Seen, now: Seen) -> list[str]:
    """What does more work than recorded, or is planned in another way; a sentence for each."""
    faults = [f"{step}: recorded, but not counted" for step in was.work if step not in now.work]
    for step, figures in now.work.items():
        if step in was.work:
            faults += [f"{step}: {fault}" for fault in _more(was.work[step], figures, step.startswith("life"))]
        else:
            faults.append(f"{step}: counted, but not recorded")
    for query in sorted({*was.plans, *now.plans}):
        then, seen = set(was.plans.get(query, ())), set(now.plans.get(query, ()))
        if then != seen:
            new, gone = (", ".join(sorted(which)) or "nothing" for which in (seen - then, then - seen))
            faults.append(f"{query} is planned otherwise: new is {new}; gone is {gone}")
    return faults + reads_all(now)


def _more(was: Figures, now: Figures, moody: bool) -> list[str]:
    faults = []
    more = _MORE if moody or now["jobs"] == 1 else _MORE_OF_A_BATCH
    for figure, anyway in _ANYWAY.items():
        then, seen = was.get(figure, 0), now.get(figure, 0)
        slack = _MOODS if moody and figure in ("statements", "commits") else anyway / now["jobs"]
        if seen > then * (1 + more) + slack:
            faults.append(f"{figure} {seen:g}, recorded is {then:g}")
    return faults


def reads_all(seen: Seen) -> list[str]:
    """What no query may do, whatever is recorded: read a table from end to end that grows with the jobs."""
    scans = {f"{scan} on {table}" for table in _HOT for scan in ("Seq Scan", "Bitmap Heap Scan")}
    return [f"{query} does a {scan}" for query, plan in seen.plans.items() for scan in sorted(scans.intersection(plan))]


def explained(faults: list[str], version: int, family: int) -> str:
    """The faults, and what to do about them."""
    of = "" if family == version else f" (compared with what is recorded for {family})"
    return (
        f"more work than recorded in bench/{RECORD.name}, on PostgreSQL {version}{of}:\n  "
        + "\n  ".join(faults)
        + "\nMake it less again. If it must be so: ./dev bench guard --record, and say in the commit why."
    )


# ------------------------------------------------------------------------------------------------- on the command line


def servers() -> dict[int, Path]:
    """The programs of every major version that is here; where TENURE_POSTGRES_BIN is set, of that one alone."""
    there = [find_binaries()]
    if "TENURE_POSTGRES_BIN" not in os.environ:
        there += [path for path in binaries._candidates() if (path / "postgres").exists()]
    found: dict[int, Path] = {}
    for path in there:
        version = subprocess.run([path / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
        found.setdefault(int(version.split()[2].split(".")[0]), path)
    return {version: path for version, path in sorted(found.items()) if 15 <= version <= 18}


def show(version: int, seen: Seen, was: Seen) -> None:
    """Print the table; what is recorded stands in brackets where it is another figure."""
    print(f"\nCounted on PostgreSQL {version}; a job, except statements and commits (recorded)")
    columns = ("statements", "commits", "rows", "entries", "pages", "wal_bytes")
    print(f"| | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}")
    for step, figures in seen.work.items():
        cells = []
        for column in columns:
            now, then = figures.get(column), was.work.get(step, {}).get(column)
            cells.append("" if now is None else f"{now:g}" if then in (now, None) else f"{now:g} ({then:g})")
        print(f"| {step} | {' | '.join(cells)} |")


def main() -> None:
    """Count on every PostgreSQL that is found, and compare or record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write bench/guard.json")
    options = parser.parse_args()
    found: dict[int, Seen] = {}
    reports: list[str] = []
    for version, programs in servers().items():
        print(f"counting on PostgreSQL {version} …", file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix="tenure-guard-") as place, server(Path(place), programs) as course:
            found[version] = asyncio.run(course.run())
        family, was = recorded(version) if RECORD.exists() else (version, Seen())
        show(version, found[version], was)
        if faults := worse(was, found[version]):
            reports.append(explained(faults, version, family))
    if options.record:
        if bad := [fault for seen in found.values() for fault in reads_all(seen)]:
            raise SystemExit("not recorded: " + "; ".join(bad))
        record(found)
    elif reports:
        raise SystemExit("\n".join(reports))


if __name__ == "__main__":
    main()
