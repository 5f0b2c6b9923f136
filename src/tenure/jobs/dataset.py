"""Datasets: named, versioned output of jobs, and what a completion adds to them.

    dataset ─▶ generations 1, 2, 3 …      one of them is current: a cutover changes which, for a set of datasets at once
                  └─▶ scopes              each has a batch of rows or a pointer; a replace exchanges the whole batch
                  └─▶ appended rows       each once, by its key

A job reads and writes the generations that were pinned when it was made. Its outputs and events are stored in the
transaction that ends it, or not at all.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

from tenure.errors import BadInput
from tenure.jobs import validation
from tenure.jobs.job import NewJob

#: The scope of a pointer that names no scope.
WHOLE: Final = "all"
#: The most rows of one output of a completion. More are staged before it.
MAX_ROWS: Final = 1_000_000
#: The most rows that are staged under one number: their places are keys of nine digits.
MAX_STAGED: Final = 999_999_999
#: The most outputs, and the most events, of one completion.
MAX_OUTPUTS: Final = 1_000
#: The most datasets that one cutover switches.
MAX_SET: Final = 1_000
MAX_KEEP: Final = 1_000
MAX_COUNT: Final = 2**63 - 1
#: What an event of a dataset can say about its input; it has a cursor or a partition key.
_EVENT_FIELDS: Final = ("cursor", "partition_key", "start", "end")


@dataclass(slots=True)
class NewDataset:
    """A dataset to declare. `shape`: what its rows look like, any JSON; a changed shape is a new generation."""

    name: str
    tenant_id: str = "default"
    shape: Any = None
    #: How many former generations stay, with their rows, beside the current one; None: all of them.
    keep: int | None = None


class Dataset(NamedTuple):
    """A dataset as it is now."""

    id: int
    uuid: UUID
    name: str
    tenant_id: str
    #: The number of the current generation, and of the newest one.
    current: int
    newest: int
    keep: int | None
    created_at: datetime
    created_by: str | None


class Generation(NamedTuple):
    """A generation of a dataset (`dataset_version`) as it is now."""

    id: int
    dataset: str
    dataset_uuid: UUID
    tenant_id: str
    number: int
    is_current: bool
    shape_json: str | None
    #: The flow that writes it.
    flow_id: int | None
    created_at: datetime
    created_by: str | None
    #: When it last became current; None: never.
    current_since: datetime | None
    #: A generation that was rolled back, or whose rows were dropped, never becomes current again.
    rolled_back_at: datetime | None
    dropped_at: datetime | None

    @property
    def shape(self) -> Any:
        """What its rows look like, as declared."""
        return None if self.shape_json is None else json.loads(self.shape_json)


class Pin(NamedTuple):
    """The generation that a job reads or writes, fixed when the job was made."""

    job_id: int
    mode: Literal["read", "write"]
    dataset: str
    dataset_uuid: UUID
    generation: int
    generation_id: int


@dataclass(frozen=True, slots=True)
class Append:
    """Add rows, each once: a row whose key the generation has is left out. Keys come from the input (`row_keys`)."""

    dataset: str
    rows: Sequence[Any] = ()
    keys: Sequence[str] = ()
    #: Rows that this attempt has staged; then `rows` and `keys` are empty.
    staged: int | None = None


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace all rows of a scope (a partition, a range …). Without keys, rows are numbered in their order."""

    dataset: str
    scope: str
    rows: Sequence[Any] = ()
    keys: Sequence[str] | None = None
    staged: int | None = None


@dataclass(frozen=True, slots=True)
class Pointer:
    """Point a scope to data that is kept elsewhere."""

    dataset: str
    location: str
    cursor: str | None = None
    row_count: int | None = None
    scope: str = WHOLE


Output = Append | Replace | Pointer


@dataclass(frozen=True, slots=True)
class DatasetEvent:
    """An event of a completion: this input of a dataset is done. Tasks that are subscribed to it run once for each."""

    #: The name of a dataset of the job's tenant, or its UUID. A UUID that none has is somebody else's dataset: such an
    #: event stands in the log alone.
    dataset: str | UUID
    #: Which generation; None: the one that the job writes.
    generation: int | None = None
    cursor: str | int | None = None
    partition_key: str | None = None
    start: str | int | None = None
    end: str | int | None = None

    def input(self) -> dict[str, Any]:
        """What it says about the input; with dataset and generation this is its identity."""
        given = {name: getattr(self, name) for name in _EVENT_FIELDS}
        return {name: value for name, value in given.items() if value is not None}


class Row(NamedTuple):
    """A row of a dataset. Without a key of its own it has its place in its scope as key."""

    scope: str
    key: str
    value_json: str

    @property
    def value(self) -> Any:
        """The row."""
        return json.loads(self.value_json)


class RowPage(NamedTuple):
    """Some rows of a generation, by scope and key."""

    rows: Sequence[Row]
    #: Where the next page begins, for `after`; None: this was the last one.
    next: str | None


class StagedRows(NamedTuple):
    """Rows that an attempt has staged: the number to refer by, and how many they are."""

    number: int
    rows: int


class StoredPointer(NamedTuple):
    """Where the data of a scope is kept."""

    scope: str
    location: str
    cursor: str | None
    row_count: int | None
    job_id: int | None
    at: datetime


class StoredOutput(NamedTuple):
    """What a completion added to a dataset."""

    #: Its place among the outputs of the completion (`output_index`).
    place: int
    kind: Literal["append", "replace", "pointer"]
    dataset: str
    dataset_uuid: UUID
    generation: int
    scope: str | None
    location: str | None
    cursor: str | None
    #: The rows that are new: of an append those whose key the generation did not have.
    row_count: int | None
    #: The rows that the completion gave; None: a pointer.
    given: int | None
    at: datetime


class Switched(NamedTuple):
    """A dataset whose current generation was changed, and how."""

    dataset: str
    before: int
    after: int


class Switch(NamedTuple):
    """A change of the current generations of a set of datasets."""

    id: int
    kind: Literal["cutover", "rollback"]
    tenant_id: str
    at: datetime
    actor: str
    reason: str | None
    #: Of a rollback: the cutover that it undid.
    undoes: int | None
    datasets: Sequence[Switched]


class RolledBack(NamedTuple):
    """What a rollback did."""

    switch: Switch
    #: The waiting jobs of the rolled-back generations that were cancelled.
    cancelled: Sequence[int]
    #: Job → why it goes on: its contract has no cancel, or it could not be cancelled.
    left: Mapping[int, str]


@dataclass(slots=True)
class NewSubscription:
    """A task to run for each event of a dataset. `job` is what is enqueued, with the event as one more argument."""

    dataset: str
    job: NewJob
    argument: str = "event"


class Subscription(NamedTuple):
    """A task that runs for each event of a dataset."""

    id: int
    dataset: str
    tenant_id: str
    contract: str
    type: str
    argument: str
    application: str | None
    created_at: datetime
    #: How many events wait to become its jobs, and why the last one could not yet.
    waiting: int
    last_error: str | None


def row_keys(rows: Sequence[Any], key: str | Sequence[str]) -> list[str]:
    """The keys of rows by the fields that make each row unique; refuses a row that lacks one."""
    names: tuple[Any, ...] = (key,) if isinstance(key, str) else tuple(key)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise BadInput(f"key must be the name of a field, or several names, not {key!r}")
    keys = []
    for n, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise BadInput(f"rows[{n}] is not an object, so that it has no {names[0]!r}. Next: give the keys yourself")
        if missing := [name for name in names if row.get(name) is None]:
            raise BadInput(f"rows[{n}] has no {missing[0]!r}, which is part of its key")
        keys.append(validation.to_json(f"rows[{n}]", [row[name] for name in names]))
    return keys


def place_keys(first: int, count: int) -> list[str]:
    """The keys of rows without keys of their own: their places, so that they sort by it."""
    return [f"{n:09d}" for n in range(first, first + count)]


def check_dataset(new: NewDataset, max_bytes: int = validation.MAX_BYTES) -> str | None:
    """Check a declaration; returns its shape as JSON."""
    name = validation.check_name("dataset", new.name)
    if "/" in name or not name.isprintable() or name != name.strip() or name in (".", ".."):
        raise BadInput(f"the name of a dataset is printable text without / and outer blanks, not {name!r}")
    validation.check_name("tenant_id", new.tenant_id)
    if new.keep is not None:
        validation.check_integer("keep", new.keep, 0, MAX_KEEP)
    return (
        None
        if new.shape is None
        else validation.to_json("shape", new.shape, min(max_bytes, validation.MAX_SHAPE_BYTES))
    )


def check_output(path: str, output: Any, max_bytes: int = validation.MAX_BYTES) -> list[str]:
    """Check an output of a completion; returns its rows as JSON. `path` is its name in errors."""
    if not isinstance(output, Append | Replace | Pointer):
        raise BadInput(f"{path} must be an Append, a Replace or a Pointer; got a {type(output).__name__}")
    validation.check_name("dataset", output.dataset)
    if isinstance(output, Pointer):
        validation.check_name("location", output.location)
        if output.cursor is not None:
            validation.check_name("cursor", output.cursor)
        if output.row_count is not None:
            validation.check_integer(f"{path}.row_count", output.row_count, 0, MAX_COUNT)
        validation.check_name("scope", output.scope)
        return []
    if isinstance(output, Replace):
        validation.check_name("scope", output.scope)
    if output.staged is not None:
        validation.check_integer(f"{path}.staged", output.staged, 1, validation.MAX_ID)
        if output.rows or output.keys:
            raise BadInput(f"{path} has rows, and rows that were staged. Next: stage all of them, or none")
        return []
    needs_keys = isinstance(output, Append)
    return check_rows(path, output.rows, output.keys if needs_keys or output.keys is not None else None, max_bytes)


def check_rows(
    path: str, rows: Sequence[Any], keys: Sequence[str] | None, max_bytes: int = validation.MAX_BYTES
) -> list[str]:
    """Check rows and their keys; returns the rows as JSON."""
    validation.check_integer(f"number of rows of {path}", len(rows), 0, MAX_ROWS)
    if keys is not None:
        if len(keys) != len(rows):
            raise BadInput(f"{path} has {len(rows)} rows and {len(keys)} keys. Next: give each row its key (row_keys)")
        for key in keys:
            validation.check_name("row key", key)
        if len(set(keys)) < len(keys):
            ((twice, _),) = Counter(keys).most_common(1)
            raise BadInput(f"{path} has two rows with the key {twice}. Next: choose a key that tells rows apart")
    return [validation.to_json(f"{path}.rows[{n}]", row, max_bytes) for n, row in enumerate(rows)]


def check_event(path: str, event: Any) -> None:
    """Check an event of a dataset."""
    if not isinstance(event, DatasetEvent):
        raise BadInput(f"{path} must be a DatasetEvent; got a {type(event).__name__}")
    if not isinstance(event.dataset, UUID):
        validation.check_name("dataset", event.dataset)
    if event.generation is not None:
        validation.check_integer(f"{path}.generation", event.generation, 1, MAX_COUNT)
    if (event.cursor is None) == (event.partition_key is None):
        raise BadInput(f"{path} must have a cursor or a partition_key, and not both")
    if (event.start is None) != (event.end is None):
        raise BadInput(f"{path} has only one of start and end. Next: give both, or none")
    if event.partition_key is not None:
        validation.check_name("partition_key", event.partition_key)
    for name in ("cursor", "start", "end"):
        value = getattr(event, name)
        if isinstance(value, str):
            validation.check_name("cursor", value)
        elif value is not None:
            validation.check_integer(f"{path}.{name}", value, -MAX_COUNT, MAX_COUNT)


def parse_event(path: str, body: Any) -> DatasetEvent | None:
    """Return the event of a dataset that a JSON object with `dataset_uuid` is; None: it is none."""
    if not isinstance(body, Mapping) or "dataset_uuid" not in body:
        return None
    try:
        uuid = UUID(str(body["dataset_uuid"]))
    except ValueError:
        raise BadInput(f"{path}.dataset_uuid must be a UUID, not {body['dataset_uuid']!r}") from None
    known = {"dataset_uuid", "dataset_version", *_EVENT_FIELDS}
    if unknown := sorted(map(str, body.keys() - known)):
        raise BadInput(f"{path} has {unknown[0]!r}; an event of a dataset has {', '.join(sorted(known))}")
    event = DatasetEvent(uuid, body.get("dataset_version"), *(body.get(name) for name in _EVENT_FIELDS))
    if event.generation is None:
        raise BadInput(f"{path}.dataset_version is missing: it says which generation the event is about")
    check_event(path, event)
    return event
