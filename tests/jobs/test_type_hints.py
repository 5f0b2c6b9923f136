"""Values to JSON and back by type hints: what comes back is what was passed, and what does not fit is named."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, IntFlag, StrEnum
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    TypedDict,
    TypeVar,
    Union,
)
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, computed_field, model_validator

from tenure.errors import BadInput, ValidationError
from tenure.jobs.arguments.signature import Signature

T = TypeVar("T")
UserId = NewType("UserId", int)
# The older spellings of `|` are other objects; by these names they stay what they are.
OPTIONAL: Any = Optional
UNION: Any = Union


class Color(Enum):
    RED = "red"
    ONE = 1
    PAIR = (1, 2)
    DAY = date(2030, 1, 1)


class Size(IntEnum):
    SMALL = 1
    LARGE = 2


class Way(StrEnum):
    UP = "up"


class Rights(IntFlag):
    READ = 1
    WRITE = 2


class Stranger: ...


class Email(str):
    __slots__ = ()


class Point(NamedTuple):
    x: float
    at: date


class Line(TypedDict):
    price: Decimal
    note: NotRequired[Color]


@dataclass(frozen=True)
class Tree:
    value: Decimal
    children: tuple[Tree, ...] = ()
    by_day: Mapping[date, int] = field(default_factory=dict)
    total: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.value < 0:
            raise ValueError("below zero")
        object.__setattr__(self, "total", 1 + len(self.children))


@dataclass
class Box(Generic[T]):
    content: T


class Item(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    sku: UUID
    price: Decimal
    until: datetime | None = Field(default=None, alias="validUntil")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def label(self) -> str:
        return str(self.sku)


class Order(BaseModel):
    items: list[Item] = []


def through(hint: Any, value: Any) -> Any:
    """The value after it was stored for a parameter with this hint, and loaded again."""
    signature = taking(hint)
    _, named = signature.arguments(json.loads(json.dumps(signature.payload((value,), {}), allow_nan=False)))
    return named["it"]


def taking(hint: Any) -> Signature:
    """The signature of a task with one parameter of this hint."""

    def task(it: Any) -> None: ...

    task.__annotations__["it"] = hint
    return Signature(task)


words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8)
whole = st.integers()
days = st.dates()
zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
moments = st.datetimes() | st.datetimes(timezones=zones)
spans = st.timedeltas(timedelta(days=-36_000), timedelta(days=36_000))
digits = st.decimals(allow_nan=False)
prices = st.decimals(min_value=0, allow_nan=False, allow_infinity=False)
trees = st.recursive(
    st.builds(Tree, prices, st.just(()), st.dictionaries(days, whole, max_size=2)),
    lambda inner: st.builds(Tree, prices, st.lists(inner, max_size=2).map(tuple)),
    max_leaves=4,
)
items = st.builds(Item, sku=st.uuids(), price=prices, validUntil=st.none() | st.datetimes(timezones=st.just(UTC)))
points = st.builds(Point, st.floats(allow_nan=False, allow_infinity=False), days)

ROUND_TRIPS: Mapping[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "no hint": (Any, st.recursive(st.none() | st.booleans() | whole | words, lambda one: st.lists(one, max_size=3))),
    "text": (str, words),
    "whole number": (int, whole),
    "number": (float, st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)),
    "truth": (bool, st.booleans()),
    "nothing": (None, st.none()),
    "datetime": (datetime, moments),
    "date": (date, days),
    "time": (time, st.times() | st.times(timezones=zones)),
    "date or datetime": (date | datetime, days | moments),
    "datetime or date": (datetime | date | None, days | moments | st.none()),
    "span": (timedelta, spans | st.just(timedelta.max - timedelta(microseconds=999_999)) | st.just(timedelta.min)),
    "decimal": (Decimal, digits),
    "uuid": (UUID, st.uuids()),
    "bytes": (bytes, st.binary()),
    "bytes inside": (dict[str, list[bytes]], st.dictionaries(words, st.lists(st.binary()))),
    "enum": (Color, st.sampled_from(Color)),
    "enum of numbers": (Size, st.sampled_from(Size)),
    "flags": (Rights, st.sampled_from([Rights.READ, Rights.WRITE, Rights.READ | Rights.WRITE])),
    "literal": (Literal["a", 1, True, None, Color.RED, b"x"], st.sampled_from(["a", 1, True, None, Color.RED, b"x"])),
    "own text": (Email, words.map(Email)),
    "new type": (UserId, whole),
    "annotated": (Annotated[Decimal, ["unhashable"]], digits),
    "optional": (OPTIONAL[UUID], st.none() | st.uuids()),
    "union": (UNION[int, float, str, bool], whole | words | st.booleans() | st.just(1.5)),
    "union of others": (UUID | Decimal | list[date] | None, st.uuids() | st.lists(days) | st.none()),
    "list": (list[date], st.lists(days)),
    "nested lists": (list[list[timedelta]], st.lists(st.lists(spans, max_size=2), max_size=2)),
    "tuple of one kind": (tuple[Decimal, ...], st.lists(digits).map(tuple)),
    "tuple of places": (tuple[date, UUID], st.tuples(days, st.uuids())),
    "any tuple": (tuple, st.lists(whole).map(tuple)),
    "set": (set[date], st.sets(days)),
    "frozen set": (frozenset[Color], st.frozensets(st.sampled_from(Color))),
    "object": (dict[str, Decimal], st.dictionaries(words, digits)),
    "keys of numbers": (dict[int, date], st.dictionaries(whole, days)),
    "keys of uuids": (dict[UUID, int] | None, st.dictionaries(st.uuids(), whole)),
    "keys of dates": (list[Mapping[date, int]], st.lists(st.dictionaries(days, whole, max_size=2), max_size=2)),
    "keys of an enum": (dict[Size, int], st.dictionaries(st.sampled_from(Size), whole)),
    "keys that are texts": (dict, st.dictionaries(st.sampled_from(Way), whole)),
    "counter": (Counter[str], st.dictionaries(words, whole).map(Counter)),
    "ordered": (OrderedDict[str, date], st.dictionaries(words, days).map(OrderedDict)),
    "sequence": (Sequence[UUID], st.lists(st.uuids())),
    "dataclass": (Tree, trees),
    "dataclasses inside": (dict[str, Tree | None], st.dictionaries(words, trees | st.none(), max_size=2)),
    "generic dataclass": (Box[int], st.builds(Box, whole)),
    "named tuple": (Point, points),
    "named tuple as a tuple": (tuple[float, date], points),
    "typed dict": (Line, st.fixed_dictionaries({"price": digits}, optional={"note": st.sampled_from(Color)})),
    "model": (Item, items),
    "model with models": (Order, st.builds(Order, items=st.lists(items, max_size=2))),
}  # fmt: skip


@pytest.mark.parametrize("what", ROUND_TRIPS)
@settings(derandomize=True, max_examples=40, deadline=None, database=None)
@given(data=st.data())
def test_what_was_passed_comes_back(what: str, data: st.DataObject) -> None:
    hint, values = ROUND_TRIPS[what]
    value = data.draw(values)
    back = through(hint, value)
    assert back == value
    if hint not in (Any, tuple[float, date], dict):
        assert type(back) is type(value) or {type(back), type(value)} == {float, int}
    if isinstance(value, (datetime, time)):
        assert back.utcoffset() == value.utcoffset()


NOT_STORED: Mapping[str, tuple[Any, Any, str]] = {
    "not a number": (float, float("nan"), "'it' of task 'task' cannot be stored: nan is not a number that JSON has"),
    "infinity inside": (list[float], [1.0, float("-inf")], "'it[1]' of task 'task' cannot be stored: -inf is not"),
    "NUL": (str, "a\x00b", "it contains a NUL character, which PostgreSQL cannot store. Next: remove it"),
    "NUL in a key": (dict, {"a\x00b": 1}, "it contains a NUL character"),
    "a lone surrogate": (Any, {"a": ["\ud800"]}, "'it.a[0]' of task 'task' cannot be stored: it contains a lone surr"),
    "an endless number": (int, 10**5000, "it has more digits than JSON readers take"),
    "bytes": (Any, b"x", "bytes are not JSON. Next: annotate them as bytes"),
    "bytes for a text": (str, b"x", "bytes are not JSON"),
    "a path": (Any, Path("/tmp/x"), "a PosixPath is not JSON. Next: pass str(path)"),
    "a class": (Any, Order, "a ModelMetaclass is not JSON"),
    "an object in a dataclass": (Any, Tree(Decimal(1), children=(object(),)), "'it.children[0]' of"),  # type: ignore[arg-type]
    "an object in a model": (Any, Order.model_construct(items=[object()]), "an Order cannot be dumped"),
    "NUL in a model": (BaseModel, type("M", (BaseModel,), {"__annotations__": {"a": str}})(a="\x00"), "'it.a' of"),
    "keys without a hint": (dict, {1: 2}, "\"it['1']\" of task 'task' cannot be stored: an int as a key is not JSON"),
    "keys of another kind": (dict[date, int], {1: 2}, "an int as a key is not JSON. Next: use texts as keys"),
    "keys that could be either": (dict[str | int, int], {1: 2}, "an int as a key is not JSON"),
    "keys that are tuples": (dict[tuple[int, int], int], {(1, 2): 3}, "a tuple as a key is not JSON"),
    "true as a key": (dict[bool, int], {True: 1}, "a bool as a key is not JSON"),
    "keys of one form": (dict[int, int], {1: 1, "1": 2}, "two keys have the same form"),
    "a time in a zone without a date": (time, time(9, tzinfo=ZoneInfo("Europe/Berlin")), "says no offset"),
    "ages to the microsecond": (timedelta, timedelta.max, "cannot be kept to the microsecond"),
}  # fmt: skip


@pytest.mark.parametrize("what", NOT_STORED)
def test_is_not_stored(what: str) -> None:
    hint, value, message = NOT_STORED[what]
    with pytest.raises(BadInput) as refusal:
        taking(hint).payload((value,), {})
    assert message in str(refusal.value)


ITEM = {"sku": "6f0c2d3e-1111-4111-8111-111111111111", "price": "1.5"}
DOES_NOT_FIT: Mapping[str, tuple[Any, Any, str]] = {
    "digits for a whole number": (int, "5", "'it' of task 'task' does not fit: Input should be a valid int"),
    "true for a whole number": (int, True, "Input should be a valid integer, not True"),
    "a fraction for a whole number": (int, 5.0, "Input should be a valid integer, not 5.0"),
    "true for a number": (float, True, "Input should be a valid number, not True"),
    "a number too large": (float, 10**400, "Input should be a valid number, not 1000"),
    "a number for truth": (bool, 1, "Input should be a valid boolean, not 1"),
    "null": (str, None, "Input should be a valid string, not None"),
    "something for null": (None, 0, "Input should be None, not 0"),
    "a date for a moment": (datetime, "2030-01-01", "Input should be a date and time as ISO 8601 writes it"),
    "a moment for a date": (date, "2030-01-01T00:00:00", "Input should be a date as ISO"),
    "a word for a time": (time, "noon", "Input should be a time of day"),
    "digits for a span": (timedelta, "5", "Input should be a number of seconds"),
    "too long a span": (timedelta, 1e30, "Input should be a number of seconds"),
    "a fraction for a decimal": (Decimal, 1.1, "Input should be a decimal number as a text, not 1.1"),
    "a word for a decimal": (Decimal, "much", "Input should be a decimal number"),
    "a word for a uuid": (UUID, "you", "Input should be a UUID"),
    "not base64": (bytes, "ä", "Input should be bytes in base64"),
    "no member": (Color, "blue", 'Input should be one of "red", 1, [1, 2], "2030-01-01", not \'blue\''),
    "true for a member": (Size, True, "Input should be one of 1, 2, not True"),
    "true for a literal": (Literal[1], True, "Input should be one of 1, not True"),
    "none of a union": (int | UUID, "x", ": Input should be a valid integer, not 'x'; Input should be a UUID"),
    "inside an optional": (list[int] | None, [1, "x"], "'it[1]' of task 'task' does not fit"),
    "a text for a list": (Sequence[str], "abc", "Input should be a valid list, not 'abc'"),
    "too few places": (tuple[int, int], [1], "'it[1]' of task 'task' does not fit: Field required"),
    "a place of a tuple": (tuple[int, str], [1, 2], "'it[1]' of task 'task' does not fit: Input should be a valid str"),
    "parts that no set has": (set, [[]], "Set items should be hashable"),
    "a key": (dict[int, int], {"x": 1}, "'it.x' of task 'task' does not fit: Input should be a valid integer, not 'x'"),
    "a value of an object": (dict[str, list[int]], {"a b": [1, "2"]}, "\"it['a b'][1]\" of task 'task' does not"),
    "a list for an object": (dict, [], "Input should be a valid dictionary, not []"),
    "a dataclass that lacks": (Tree, {}, "'it.value' of task 'task' does not fit: Field required"),
    "a dataclass that has more": (Tree, {"value": "1", "x": 1, "y": 2}, "'it.x' of task 'task' does not fit: Unexp"),
    "deep in dataclasses": (Tree, {"value": "1", "children": [{"value": 1.5}]}, "'it.children[0].value' of"),
    "a dataclass that says no": (Tree, {"value": "-1"}, "Value error, below zero"),
    "a typed dict that lacks": (Line, {"note": "red"}, "'it.price' of task 'task' does not fit: Field required"),
    "a named tuple": (Point, [1, "x"], "'it[1]' of task 'task' does not fit: Input should be a date"),
    "a model": (Order, {"items": [ITEM, {**ITEM, "price": []}]}, "'it.items[1].price' of task 'task' does not fit"),
    "a model that is no object": (Order, 5, "does not fit: Input should be a valid dictionary or instance of Order"),
    "a class that is not JSON": (Stranger, "x", "Input should be an instance of Stranger, not 'x'"),
}  # fmt: skip


@pytest.mark.parametrize("what", DOES_NOT_FIT)
def test_does_not_fit(what: str) -> None:
    hint, value, message = DOES_NOT_FIT[what]
    with pytest.raises(ValidationError) as refusal:
        taking(hint).arguments({"it": value})
    assert message in str(refusal.value)
    assert refusal.value.reason == "validation_failed"


def test_a_union_takes_the_first_member_that_fits_and_a_json_type_before_all_others() -> None:
    assert through(date | str, date(2030, 1, 1)) == "2030-01-01"
    assert through(Decimal | int, 5) == 5
    assert isinstance(through(float | int, 5), int)
    assert through(Tree | Point, Point(1.5, date(2030, 1, 1))) == Point(1.5, date(2030, 1, 1))


def test_a_json_type_is_taken_before_a_class_also_inside_of_other_hints() -> None:
    assert through(list[date | str], ["2030-01-01"]) == ["2030-01-01"]
    assert through(dict[str, Decimal | int | None], {"a": 5}) == {"a": 5}
    assert isinstance(through(list[float | int], [5])[0], int)
    assert through(list[UUID | Any], ["x", {}]) == ["x", {}]


@dataclass
class Partly:
    """Two of its hints cannot be resolved."""

    at: date
    what: nowhere.Unknown[int]  # type: ignore[name-defined]  # noqa: F821
    some: list[Missing]  # type: ignore[name-defined]  # noqa: F821


class Early(BaseModel):
    """A model with a validator around it, which must see each value once."""

    at: datetime
    parent: Early | None = None

    @model_validator(mode="before")
    @classmethod
    def shift(cls, value: Any) -> Any:
        assert isinstance(value, dict)
        return {**value, "at": value["at"][1:]} if str(value["at"])[0] == "!" else value


def test_hints_in_a_class_that_cannot_be_resolved_leave_their_values_and_the_others_work() -> None:
    assert through(Partly, Partly(date(2030, 1, 1), {"a": 1}, [2])) == Partly(date(2030, 1, 1), {"a": 1}, [2])


def test_a_model_reads_its_own_dump_also_where_it_contains_itself_and_has_validators() -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    early = Early(at=moment, parent=Early(at=moment))
    assert through(list[Early], [early]) == [early]
    assert through(dict[str, Early | Tree], {"a": early}) == {"a": early}
    found = taking(Early).arguments({"it": {"at": "!2030-01-01T00:00:00Z", "parent": {"at": "!2030-01-01T00:00:00Z"}}})[
        1
    ]["it"]
    assert found == early


def test_constraints_of_a_hint_are_checked_when_a_value_is_passed() -> None:
    assert through(Annotated[int, Field(gt=0)], 5) == 5
    assert through(list[Annotated[Decimal, Field(gt=0)]], [Decimal(5)]) == [Decimal(5)]
    with pytest.raises(BadInput, match=r"'it\[0\]' of task .* Input should be greater than 0 seconds, not"):
        through(list[Annotated[timedelta, Field(gt=timedelta(0))]], [timedelta(0)])


def test_a_hint_that_pydantic_cannot_read_is_said_when_a_value_is_passed() -> None:
    with pytest.raises(BadInput, match="pydantic cannot read its type hint"):
        through(Annotated[str, Field(pattern="(")], "x")


def test_equal_sets_are_stored_equally() -> None:
    one, other = set([0, 8]), set([8, 0])  # noqa: C405 - written so, they keep the order in which they were made
    assert list(one) != list(other)
    assert taking(set[int]).payload((one,), {}) == taking(set[int]).payload((other,), {}) == {"it": [0, 8]}


def test_a_model_is_known_by_its_name_and_by_its_alias() -> None:
    moment = "2030-01-01T00:00:00Z"
    for name in ("until", "validUntil"):
        item = taking(Item).arguments({"it": {**ITEM, name: moment}})[1]["it"]
        assert item.until == datetime(2030, 1, 1, tzinfo=UTC)


def test_hints_that_say_nothing_leave_the_value_as_it_is() -> None:
    untyped = namedtuple("untyped", "a b")
    hints: list[Any] = [object, T, "no such name", 5, OPTIONAL[Any], Callable[..., int]]
    for hint in hints[:5]:
        assert through(hint, {"a": [1]}) == {"a": [1]}
    assert through(untyped, untyped(1, "x")) == untyped(1, "x")
    with pytest.raises(BadInput, match="Input should be callable"):
        through(hints[5], 1)


def test_what_a_dataclass_needs_beyond_its_fields_is_said_when_it_is_passed() -> None:
    @dataclass
    class Locked:
        secret: InitVar[str]
        size: int = 0

    with pytest.raises(BadInput, match=r"'it\.secret' of task .* Field required"):
        through(Locked, Locked("x"))
