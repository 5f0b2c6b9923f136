"""The time that a task's arguments take: as JSON when a job is enqueued, and as Python values when it runs.

    ./dev bench arguments [--against REVISION] [--rounds 15]

No database takes part. With `--against`, the package `tenure.jobs.arguments` of an earlier revision is measured in the
same process, in turn with this tree's, so both meet the same machine. Figures are microseconds of processor time, the
medians of all rounds. A declaration is what `@app.task` does with the signature; the first call also makes what later
calls use.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import UUID

from bench.beside import extract
from bench.depth_sections.section import Table
from tenure.jobs.arguments.signature import Signature

_NAME = "arguments_of_revision"
_LOAD = "import time; t = time.process_time(); import pydantic; pydantic.TypeAdapter; print(time.process_time() - t)"


@dataclass
class Order:
    """Ten fields of common types."""

    id: UUID
    customer: str
    email: str | None
    at: datetime
    day: date
    price: Decimal
    count: int
    paid: bool
    weight: float
    within: timedelta


async def two_plain(to: str, count: int) -> bool: ...  # type: ignore[empty-body]
async def five_plain(flag: bool, share: float, note: str | None, options: dict[str, Any], *, tag: Any) -> None: ...
async def moment(at: datetime, id: UUID) -> None: ...
async def ten_fields(order: Order) -> Order: ...  # type: ignore[empty-body]
async def thousand(numbers: list[int]) -> list[int]: ...  # type: ignore[empty-body]


_ORDER = Order(
    UUID(int=7), "Ada", None, datetime(2030, 1, 1, tzinfo=UTC), date(2030, 1, 1), Decimal("1.50"), 3, True, 0.5,
    timedelta(minutes=5),
)  # fmt: skip
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], int]] = {
    "two plain arguments": (two_plain, ("a@b.c", 7), {}, 4_000),
    "a bool, a float, None, an object and a text": (
        five_plain, (True, 0.5, None, {"a": 1, "b": "x"}), {"tag": "t"}, 2_000,
    ),
    "a datetime and a UUID": (moment, (_ORDER.at, _ORDER.id), {}, 1_000),
    "a dataclass with ten fields": (ten_fields, (_ORDER,), {}, 400),
    "a list of a thousand ints": (thousand, (list(range(1_000)),), {}, 50),
}  # fmt: skip


def timed(times: int, call: Callable[..., Any], *args: Any) -> float:
    """Microseconds of one call."""
    begun = time.process_time_ns()
    for _ in range(times):
        call(*args)
    return (time.process_time_ns() - begun) / times / 1_000


def figures(signature: Any) -> Iterator[tuple[str, float]]:
    """One round of every figure, with this class `Signature`."""
    for name, (function, args, kwargs, times) in CASES.items():
        ready = signature(function)
        payload = json.loads(json.dumps(ready.payload(args, kwargs)))
        ready.arguments(payload)
        yield f"{name}: enqueue", timed(times, ready.payload, args, kwargs)
        yield f"{name}: run", timed(times, ready.arguments, payload)
    for name, (function, args, kwargs, _) in CASES.items():
        yield f"{name}: declaration", timed(20, signature, function)
        new = [signature(function) for _ in range(5)]
        yield f"{name}: first call", timed(1, lambda new=new: [each.payload(args, kwargs) for each in new]) / len(new)  # noqa: B023


def of_revision(revision: str, directory: Path) -> Any:
    """The class `Signature` of an earlier revision, as a package of another name."""
    package = extract(revision, directory) / "src" / "tenure" / "jobs" / "arguments"
    for path in package.glob("*.py"):
        path.write_text(path.read_text().replace("tenure.jobs.arguments", _NAME))
    package.rename(directory / _NAME)
    sys.path.insert(0, str(directory))
    return importlib.import_module(f"{_NAME}.signature").Signature


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="REVISION", help="measure this revision's arguments in turn with them")
    parser.add_argument("--rounds", type=int, default=15, help="how many rounds, of which the median is shown")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as directory:
        classes = {"this tree": Signature}
        if options.against:
            classes = {options.against: of_revision(options.against, Path(directory)), **classes}
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in classes}
        for turn in range(options.rounds):
            for name in sorted(classes, reverse=bool(turn % 2)):
                rounds[name].append(dict(figures(classes[name])))
    rows = [
        (figure, *(f"{statistics.median(one[figure] for one in rounds[name]):.2f}" for name in classes))
        for figure in dict.fromkeys(chain.from_iterable(rounds["this tree"]))
    ]
    Table("Microseconds of processor time per call", ("call", *classes), rows).show()
    spent = statistics.median(
        float(subprocess.run([sys.executable, "-c", _LOAD], check=True, capture_output=True).stdout) for _ in range(3)
    )
    print(f"\nLoading pydantic, once in a process with a hint that is not plain: {spent * 1_000:.0f} ms.")


if __name__ == "__main__":
    main()
