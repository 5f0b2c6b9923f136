"""Datasets in a handler: what it reads, and what it adds to them with its completion.

ctx.input("prices").rows()                          the generation that was pinned when the job was made
ctx.output("totals").append(rows, key="id")         each row once, by its key
ctx.output("totals").replace(rows, scope="may")     all rows of a scope
ctx.output("totals").pointer("s3://…", row_count=7) data that is kept elsewhere
ctx.emit("totals", partition_key="may")             an event: tasks that are subscribed run for it

Outputs and events are collected here, and stored in the transaction that ends the job. A handler that fails, or whose
lease is lost, leaves nothing. Large outputs are sent in parts before (`send_large`); nobody reads those until then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

from tenure.errors import BadInput
from tenure.jobs import validation
from tenure.jobs.arguments.encode import Unfit, stored
from tenure.jobs.dataset import (
    WHOLE,
    Append,
    Pin,
    Pointer,
    Replace,
    Row,
    RowPage,
    StoredPointer,
    check_output,
    check_rows,
    place_keys,
    row_keys,
)
from tenure.jobs.dataset import Output as StoredWithCompletion
from tenure.jobs.job import DatasetUse

T = TypeVar("T")

#: Outputs of a completion with more text than this are sent before it, in parts of about this size.
_LARGE: Final = 256 * 1_024
#: The most rows of a part.
_ROWS_OF_PART: Final = 5_000
#: The database checks how large a row may be.
_ANY_SIZE: Final = 2**40


class Named(Protocol):
    """What `app.dataset(name)` returns."""

    @property
    def name(self) -> str:
        """The name of the dataset."""


def dataset_name(dataset: str | Named) -> str:
    """The name of a dataset that is given by its name, or as what `app.dataset` returned."""
    return dataset if isinstance(dataset, str) else dataset.name


#: `reads` and `writes` of a task: names, or name → the number of a generation (None: the one that is current).
Uses = Sequence[str | Named] | Mapping[str, int | None]


def dataset_uses(option: str, given: Uses | None) -> tuple[DatasetUse, ...]:
    """The datasets of an option of `@app.task`."""
    if given is None:
        return ()
    if isinstance(given, str) or not isinstance(given, (Mapping, Sequence)):
        raise BadInput(f'{option} is a list of datasets, as {option}=["prices"], or name → generation; not {given!r}')
    items = given.items() if isinstance(given, Mapping) else ((each, None) for each in given)
    uses = tuple(DatasetUse(dataset_name(each), number) for each, number in items)
    validation.check_uses(option, uses)
    return uses


@dataclass(frozen=True, slots=True)
class Event:
    """The event of a dataset for which a subscribed task runs (`@app.on`)."""

    dataset: str
    dataset_uuid: UUID
    #: The number of the generation.
    dataset_version: int
    cursor: str | int | None = None
    partition_key: str | None = None
    start: str | int | None = None
    end: str | int | None = None


class DatasetReader(ABC):
    """The content of a generation of a dataset: rows, and pointers to data that is kept elsewhere."""

    __slots__ = ()

    @abstractmethod
    async def _page(self, scope: str | None, after: str | None) -> RowPage: ...
    @abstractmethod
    async def _pointer_page(self, after: str | None) -> Sequence[StoredPointer]: ...
    @abstractmethod
    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T: ...

    async def rows(self, scope: str | None = None) -> AsyncIterator[Any]:
        """Read the rows, or those of a scope, page by page; the scope of appended rows is "".

        A scope that is replaced meanwhile is read as it was, or as it is then: never a mix.
        """
        async for row in self.keyed_rows(scope):
            yield row.value

    async def keyed_rows(self, scope: str | None = None) -> AsyncIterator[Row]:
        """`rows`, each with its scope and its key: `row.scope`, `row.key`, `row.value`."""
        after: str | None = None
        while True:
            page = await self._page(scope, after)
            for row in page.rows:
                yield row
            if (after := page.next) is None:
                return

    def rows_sync(self, scope: str | None = None) -> Iterator[Any]:
        """`rows`, from synchronous code."""
        return (row.value for row in self.keyed_rows_sync(scope))

    def keyed_rows_sync(self, scope: str | None = None) -> Iterator[Row]:
        """`keyed_rows`, from synchronous code."""
        after: str | None = None
        while True:
            page = self._wait(self._page(scope, after))
            yield from page.rows
            if (after := page.next) is None:
                return

    async def pointers(self) -> list[StoredPointer]:
        """Return the pointers, by scope."""
        found: list[StoredPointer] = []
        while page := await self._pointer_page(found[-1].scope if found else None):
            found += page
        return found

    def pointers_sync(self) -> list[StoredPointer]:
        """`pointers`, from synchronous code."""
        return self._wait(self.pointers())

    async def pointer(self, scope: str = WHOLE) -> StoredPointer | None:
        """Return the pointer of a scope; without one the pointer that names no scope. None: there is none."""
        return next((one for one in await self.pointers() if one.scope == scope), None)

    def pointer_sync(self, scope: str = WHOLE) -> StoredPointer | None:
        """`pointer`, from synchronous code."""
        return self._wait(self.pointer(scope))


class DatasetPort(Protocol):
    """The calls about datasets of a handler's context."""

    async def pins(self) -> Sequence[Pin]:
        """The generations that the job reads and writes."""

    async def row_page(self, generation_id: int, scope: str | None, after: str | None) -> RowPage:
        """A page of the rows of a generation."""

    async def pointer_page(self, generation_id: int, after: str | None) -> Sequence[StoredPointer]:
        """Pointers of a generation, by scope."""

    async def stage_rows(self, dataset: str, rows: Sequence[Any], keys: Sequence[str], staged: int | None) -> int:
        """Send rows for which the completion refers to this number."""


class Waits(Protocol):
    """Runs a coroutine for a plain function."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> T: ...


class Input(DatasetReader):
    """A dataset that the job reads, in the generation that was pinned when the job was made: `ctx.input(name)`."""

    __slots__ = ("_datasets", "name")

    def __init__(self, datasets: HandlerDatasets, name: str) -> None:
        self._datasets = datasets
        self.name = name

    async def generation(self) -> int:
        """The number of the generation."""
        return (await self._datasets.read_pin(self.name)).generation

    def generation_sync(self) -> int:
        """`generation`, from a plain function."""
        return self._wait(self.generation())

    async def _page(self, scope: str | None, after: str | None) -> RowPage:
        pin = await self._datasets.read_pin(self.name)
        return await self._datasets.port.row_page(pin.generation_id, scope, after)

    async def _pointer_page(self, after: str | None) -> Sequence[StoredPointer]:
        pin = await self._datasets.read_pin(self.name)
        return await self._datasets.port.pointer_page(pin.generation_id, after)

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._datasets.wait(coroutine)


@dataclass(slots=True)
class _Rows:
    """Collected rows of an append, or of the replace of a scope."""

    #: None: an append.
    scope: str | None
    rows: list[Any] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    #: All keys, those of rows that were sent too.
    known: set[str] = field(default_factory=set)
    #: The bytes of each row as text.
    sizes: list[int] = field(default_factory=list)
    #: The number by which the completion refers to rows that were sent.
    staged: int | None = None

    def add(self, rows: Sequence[Any], keys: Sequence[str], sizes: Sequence[int]) -> None:
        for row, key, size in zip(rows, keys, sizes, strict=True):
            if key not in self.known:
                self.known.add(key)
                self.rows.append(row)
                self.keys.append(key)
                self.sizes.append(size)

    async def send(self, port: DatasetPort, dataset: str) -> None:
        """Send the rows that were not sent yet."""
        while self.rows:
            count = _count_of_part(self.sizes)
            # With keys, so that a repeat of the call adds nothing.
            self.staged = await port.stage_rows(dataset, self.rows[:count], self.keys[:count], self.staged)
            del self.rows[:count], self.keys[:count], self.sizes[:count]

    def output(self, dataset: str) -> StoredWithCompletion:
        if self.staged is not None and self.rows:
            raise BadInput(f"some rows of dataset {dataset!r} are not sent yet. Next: await ctx.output(…).send()")
        rows = () if self.staged is not None else tuple(self.rows)
        keys = () if self.staged is not None else tuple(self.keys)
        if self.scope is None:
            return Append(dataset, rows, keys, self.staged)
        return Replace(dataset, self.scope, rows, keys or None, self.staged)


def _count_of_part(sizes: Sequence[int]) -> int:
    """How many rows go in one part: one at least."""
    total = 0
    for count, size in enumerate(sizes[:_ROWS_OF_PART]):
        total += size
        if total > _LARGE:
            return max(1, count)
    return min(len(sizes), _ROWS_OF_PART)


class Output:
    """What a handler adds to a dataset with its completion: `ctx.output(name)`."""

    __slots__ = ("_appended", "_datasets", "_scopes", "name")

    def __init__(self, datasets: HandlerDatasets, name: str) -> None:
        self._datasets = datasets
        self.name = name
        self._appended: _Rows | None = None
        #: Scope → the rows that replace it, or the pointer.
        self._scopes: dict[str, _Rows | Pointer] = {}

    def append(
        self, rows: Iterable[Any], *, key: str | Sequence[str] | None = None, keys: Sequence[str] | None = None
    ) -> None:
        """Add rows, each once: a row whose key the generation has is left out.

        key     the field, or the fields, that tell rows apart; they come from the input, so that a second run of the
                job gives the same ones
        keys    in place of that, the key of each row
        """
        encoded, sizes = self._encode(rows)
        if (key is None) == (keys is None):
            raise BadInput(
                f"append to dataset {self.name!r} needs the key of each row. "
                'Next: key="…", the field that tells rows apart, or keys=[…]'
            )
        chosen = row_keys(encoded, key) if key is not None else _texts(keys)
        check_rows(f"append to dataset {self.name!r}", encoded, chosen, _ANY_SIZE)
        if self._appended is None:
            self._appended = _Rows(None)
        self._appended.add(encoded, chosen, sizes)

    def replace(
        self,
        rows: Iterable[Any],
        *,
        scope: str,
        key: str | Sequence[str] | None = None,
        keys: Sequence[str] | None = None,
    ) -> None:
        """Replace all rows of a scope: a partition, a range, a source. Other scopes stay as they are.

        Without a key, rows are numbered in their order.
        """
        encoded, sizes = self._encode(rows)
        if key is not None and keys is not None:
            raise BadInput("key and keys say the same. Next: give one of them")
        chosen = place_keys(0, len(encoded))
        if key is not None or keys is not None:
            chosen = row_keys(encoded, key) if key is not None else _texts(keys)
        check_output("replace", Replace(self.name, scope))
        check_rows(f"replace of {scope!r} in dataset {self.name!r}", encoded, chosen, _ANY_SIZE)
        new = _Rows(scope)
        new.add(encoded, chosen, sizes)
        self._put(scope, new)

    def pointer(
        self, location: str, cursor: str | None = None, row_count: int | None = None, *, scope: str = WHOLE
    ) -> None:
        """Point a scope to data that is kept elsewhere."""
        pointer = Pointer(self.name, location, cursor, row_count, scope)
        check_output("pointer", pointer)
        self._put(scope, pointer)

    async def send(self) -> None:
        """Send the rows that were collected so far, so that they take no memory; nobody reads them before the end."""
        for rows in self._collected():
            await rows.send(self._datasets.port, self.name)

    def send_sync(self) -> None:
        """`send`, from a plain function."""
        self._datasets.wait(self.send())

    def _encode(self, rows: Iterable[Any]) -> tuple[list[Any], list[int]]:
        if isinstance(rows, (str, bytes, dict)):
            raise BadInput(f"rows of dataset {self.name!r} must be a list of rows, not a {type(rows).__name__}")
        encoded: list[Any] = []
        try:
            for row in rows:
                encoded.append(stored(row))
        except Unfit as unfit:
            raise BadInput(
                f"rows[{len(encoded)}]{unfit.place} of dataset {self.name!r} cannot be stored: {unfit.what}. "
                f"Next: {unfit.instead or 'convert it'}"
            ) from None
        except RecursionError:
            raise BadInput(f"rows[{len(encoded)}] of dataset {self.name!r} is nested too deep; flatten it") from None
        return encoded, [len(text) for text in check_rows(f"dataset {self.name!r}", encoded, None, _ANY_SIZE)]

    def _put(self, scope: str, new: _Rows | Pointer) -> None:
        if scope in self._scopes:
            raise BadInput(
                f"this handler has replaced scope {scope!r} of dataset {self.name!r} already. Next: do it once, with "
                "all its rows"
            )
        self._scopes[scope] = new

    def _collected(self) -> Iterator[_Rows]:
        if self._appended is not None:
            yield self._appended
        yield from (one for one in self._scopes.values() if isinstance(one, _Rows))

    def _size(self) -> int:
        return sum(sum(rows.sizes) for rows in self._collected())

    def _outputs(self) -> Iterator[StoredWithCompletion]:
        if self._appended is not None:
            yield self._appended.output(self.name)
        yield from (one if isinstance(one, Pointer) else one.output(self.name) for one in self._scopes.values())


def _texts(keys: Sequence[str] | None) -> list[str]:
    if isinstance(keys, str):
        raise BadInput("keys has the key of each row. Next: key=… for the name of a field")
    return list(keys or ())


class HandlerDatasets:
    """The datasets of one run of a handler."""

    __slots__ = ("_outputs", "_pins", "ended_in_transaction", "job_id", "port", "wait")

    def __init__(self, job_id: int, port: DatasetPort, wait: Waits) -> None:
        self.job_id, self.port, self.wait = job_id, port, wait
        self._pins: dict[str, Pin] | None = None
        self._outputs: dict[str, Output] = {}
        #: Whether a transaction of the handler's own has taken the outputs.
        self.ended_in_transaction = False

    async def read_pin(self, name: str) -> Pin:
        """The generation that the job reads; refuses a dataset that it does not read."""
        if self._pins is None:
            self._pins = {pin.dataset: pin for pin in await self.port.pins() if pin.mode == "read"}
        if name not in self._pins:
            raise BadInput(
                f"job {self.job_id} does not read dataset {name!r}. Next: declare it among the reads of its task"
            )
        return self._pins[name]

    def output(self, name: str) -> Output:
        """What the handler adds to a dataset."""
        if name not in self._outputs:
            self._outputs[name] = Output(self, name)
        return self._outputs[name]

    async def send_large(self) -> None:
        """Send the rows of a large completion before it; after that it needs the rest as well."""
        if sum(output._size() for output in self._outputs.values()) > _LARGE:
            for output in self._outputs.values():
                await output.send()
        for output in self._outputs.values():
            for rows in output._collected():
                if rows.staged is not None:
                    await rows.send(self.port, output.name)

    def outputs(self) -> tuple[StoredWithCompletion, ...]:
        """The outputs of the completion."""
        return tuple(one for output in self._outputs.values() for one in output._outputs())
