"""What `app.result` returns: the value that the task's return annotation says, from the database and through HTTP."""

from __future__ import annotations

import asyncio
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

import tenure
from tenure import testing
from tenure.errors import ResultDoesNotFit
from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tenure.settings import Settings
from tests.http.conftest import serving
from tests.worker.working import steady, working

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "arguments.md"
DAY, MOMENT, ID = date(2030, 1, 31), datetime(2030, 1, 31, 12, tzinfo=UTC), UUID(int=7)


class Color(Enum):
    RED = "red"
    DAY = DAY


class Size(IntEnum):
    SMALL = 1


class Point(NamedTuple):
    x: float
    at: date


class Line(TypedDict):
    price: Decimal
    colors: list[Color]


@dataclass(frozen=True)
class Report:
    id: UUID
    lines: tuple[Line, ...]
    took: timedelta
    parts: list[Report] = field(default_factory=list)
    total: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", len(self.lines))


class Item(BaseModel):
    sku: UUID
    until: datetime | None = Field(default=None, alias="validUntil")
    took: timedelta = timedelta(seconds=90)
    raw: bytes = b"x"


REPORT = Report(
    ID, ({"price": Decimal("1.50"), "colors": [Color.DAY]},), timedelta(hours=1), [Report(ID, (), timedelta())]
)

#: For each row of the table in `docs/reference/arguments.md`: return annotations with a value.
EXAMPLES: Mapping[str, Sequence[tuple[Any, Any]]] = {
    "`None`, `bool`, `int`, `str`": [(None, None), (bool, True), (int, 2**70), (str, "ß"), (int | None, None)],
    "`float`": [(float, 7.0), (list[float], [1e22, 0.5])],
    "`datetime`, `date`, `time`": [
        (datetime, MOMENT), (datetime, MOMENT.replace(tzinfo=None)), (date, DAY), (time, time(9, 30)),
    ],
    "`timedelta`": [(timedelta, timedelta(days=-1, microseconds=1))],
    "`Decimal`, `UUID`": [(Decimal, Decimal("1.50")), (UUID, ID), (dict[str, Decimal], {"a": Decimal("-Infinity")})],
    "an `Enum` member": [(Color, Color.DAY), (Size, Size.SMALL)],
    "`bytes`": [(bytes, b"\x00\xff"), (tuple[bytes, ...], (b"a",))],
    "`list`, `tuple`, a `NamedTuple`": [
        (list[date], [DAY]), (tuple[UUID, ...], (ID,)), (tuple[date, UUID], (DAY, ID)), (Point, Point(0.5, DAY)),
        (Sequence[UUID], [ID]),
    ],
    "`set`, `frozenset`": [(set[date], {DAY}), (frozenset[Color], frozenset(Color))],
    "`dict`": [(dict[date, Size], {DAY: Size.SMALL}), (Mapping[Size, int], {Size.SMALL: 1}), (Line, REPORT.lines[0])],
    "a dataclass": [(Report, REPORT), (dict[str, Report | None], {"a": REPORT, "b": None})],
    "a pydantic model": [(Item, Item(sku=ID, validUntil=MOMENT)), (list[Item], [Item(sku=ID)])],
}  # fmt: skip
ALL = [(f"{row} {n}", *example) for row, examples in EXAMPLES.items() for n, example in enumerate(examples)]


def returning(app: tenure.App, name: str, hint: Any, value: Any) -> tenure.Task[[], Any]:
    """A task of this name whose return annotation is this hint."""

    async def give() -> Any:
        return value

    give.__annotations__["return"] = hint
    return app.task(name=name)(give)


def test_every_type_that_the_reference_lists_has_an_example() -> None:
    table = REFERENCE.read_text().split("| value | stored as |", 1)[1]
    rows = re.findall(r"^\| (.+?) \| .+ \|$", table, re.MULTILINE)
    assert [row for row in rows if not row.startswith(("---", "anything else"))] == list(EXAMPLES)


async def results(app: tenure.App, tickets: Sequence[int]) -> list[Any]:
    """The result of each job."""
    return list(await asyncio.gather(*(app.result(ticket, timeout=60) for ticket in tickets)))


def compare(found: Sequence[Any]) -> None:
    """Each result is the value that its handler returned, and of the same type."""
    for (name, hint, value), back in zip(ALL, found, strict=True):
        assert repr(back) == repr(value) or back == value, f"{name}: {hint}"
        assert type(back) is type(value), f"{name}: {hint}"


async def test_a_result_is_of_the_annotated_type_from_the_database_and_through_http(dsn: str) -> None:
    with serving(dsn) as url:
        async with tenure.App(dsn) as near, tenure.App(dispatcher_url=url, settings=Settings()) as far:
            tasks = [
                (returning(near, name, hint, value), returning(far, name, hint, value)) for name, hint, value in ALL
            ]
            by_worker_here = await near.enqueue_many(task.call() for task, _ in tasks)
            await testing.drain(near, allow_any_database=True)
            compare(await results(near, by_worker_here))
            by_worker_there = await far.enqueue_many(task.call() for _, task in tasks)
            async with working(far):
                compare(await results(far, by_worker_there))
            compare(await results(near, by_worker_there))
            compare(await results(far, by_worker_here))


async def test_the_same_from_synchronous_code(dsn: str) -> None:
    async with tenure.App(dsn) as app:
        ticket = await returning(app, "report", Report, REPORT).enqueue()
        await testing.drain(app, allow_any_database=True)
        assert await asyncio.to_thread(app.result_sync, ticket) == REPORT


async def test_an_app_without_the_task_gets_the_stored_json(dsn: str) -> None:
    async with tenure.App(dsn) as app, tenure.App(dsn) as other:
        ticket = await returning(app, "point", Point, Point(0.5, DAY)).enqueue()
        await testing.drain(app, allow_any_database=True)
        assert await other.result(ticket.id) == [0.5, "2030-01-31"]


async def test_a_result_that_no_longer_fits_is_refused_with_its_place_and_the_stored_json_is_named(dsn: str) -> None:
    async with tenure.App(dsn) as before, tenure.App(dsn) as now:
        stored = {"lines": [{"price": "1.5"}, {"price": "cheap"}]}
        ticket = await returning(before, "order", Any, stored).enqueue()
        await testing.drain(before, allow_any_database=True)
        returning(now, "order", dict[str, list[Line]], None)
        with pytest.raises(ResultDoesNotFit) as refusal:
            await now.result(ticket)
        assert str(refusal.value) == (
            f"the result.lines[0].colors of job {ticket.id} does not fit the return annotation of task 'order': Field "
            f"required. Next: read the stored JSON as (await app.job({ticket.id})).result, or correct the annotation"
        )
        assert (refusal.value.job_id, refusal.value.place) == (ticket.id, ".lines[0].colors")
        assert str(pickle.loads(pickle.dumps(refusal.value))) == str(refusal.value)
        assert (await now.job(ticket)).result == stored


async def test_nothing_is_converted_in_a_result(dsn: str, store: Store) -> None:
    async with steady(dsn) as app:
        tasks = {name: returning(app, name, hint, None) for name, hint in (("count", int), ("many", list[int]))}
        for result, name, refused in (
            ("5", "count", True),
            (True, "count", True),
            ([5, True], "many", True),
            (5, "count", False),
        ):
            made = await store.enqueue(NewJob(name))
            (job,) = await store.claim("standard", worker="w1", types=[name])
            await store.succeed(job.held, result)
            if refused:
                with pytest.raises(ResultDoesNotFit, match=r"Input should be a valid integer, not ('5'|True)"):
                    await app.result(made.job_id)
            else:
                assert await app.result(made.job_id) == 5
        assert set(tasks) == {"count", "many"}


def endings() -> Mapping[str, tuple[Callable[..., Any], Any]]:
    """Functions that may end otherwise than with a result."""

    @dataclass
    class Later:
        seconds: float

    async def either() -> tenure.Snooze | Later | None:
        return Later(2)

    either.__annotations__["return"] = tenure.Snooze | Later | None

    async def never() -> tenure.Cancel | tenure.Snooze: ...  # type: ignore[empty-body]

    return {"either": (either, Later(2)), "never": (never, None)}


@pytest.mark.filterwarnings("ignore:5 is not a Python type")
def test_a_return_annotation_that_is_no_type_is_no_obstacle() -> None:
    for hint in (5, Annotated[int, []]):
        signature = returning(tenure.App("postgresql://nowhere"), "odd", hint, None).signature
        assert signature.read_result(1, signature.result(7)) == 7


@pytest.mark.parametrize("name", ["either", "never"])
def test_what_a_handler_returns_in_place_of_a_result_is_never_one(name: str) -> None:
    function, value = endings()[name]
    signature = tenure.App("postgresql://nowhere").task(function).signature
    back = signature.read_result(1, signature.result(value))
    assert (type(back).__name__, back) == (type(value).__name__, back)
