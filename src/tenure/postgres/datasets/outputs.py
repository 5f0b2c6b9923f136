"""Outputs: what a completion adds to datasets, in its transaction, and rows that an attempt stages before it.

    a held job ends ─▶ rows, batches ─▶ scopes ─▶ tenure.dataset_output ─▶ events and their deliveries ─▶ commit

The lease has been tested by then: the move that ends the job comes first. Scopes come last, because another completion
that replaces the same one waits for this transaction.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple
from uuid import UUID

from tenure.errors import BadInput, DatasetConflict, DatasetNotFound, Refused
from tenure.jobs import validation
from tenure.jobs.dataset import (
    MAX_OUTPUTS,
    MAX_STAGED,
    Append,
    DatasetEvent,
    Output,
    Pointer,
    StagedRows,
    StoredOutput,
    check_event,
    check_output,
    check_rows,
    place_keys,
)
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import Held
from tenure.jobs.outcome import Moved
from tenure.postgres.bound_contract import BoundContract
from tenure.postgres.engine import EngineUser, only_answer
from tenure.postgres.move import Batch, to_refusal
from tenure.postgres.notes import explain_one, lease_values
from tenure.postgres.statement import Atomic, Plan, carried, statement


@dataclass(frozen=True, slots=True)
class Additions:
    """What a completion adds to datasets, checked: outputs with their rows as JSON, and events."""

    outputs: Sequence[tuple[Output, Sequence[str]]]
    events: Sequence[DatasetEvent]

    def fingerprint(self) -> str:
        """A hash: a repeated key must have the same additions."""
        digest = hashlib.sha256()
        for output, rows in self.outputs:
            facts = {name: getattr(output, name) for name in output.__slots__ if name != "rows"}
            digest.update(json.dumps([type(output).__name__, facts, *rows], default=list).encode())
        for event in self.events:
            digest.update(json.dumps([str(event.dataset), event.generation, event.input()]).encode())
        return digest.hexdigest()


def prepare_additions(call: HolderCall, max_bytes: int) -> Additions | None:
    """Check what a completion adds to datasets; None: nothing."""
    if not call.outputs and not call.dataset_events:
        return None
    validation.check_integer("number of outputs", len(call.outputs), 0, MAX_OUTPUTS)
    validation.check_integer("number of events", len(call.dataset_events), 0, MAX_OUTPUTS)
    outputs = [(one, check_output(f"outputs[{n}]", one, max_bytes)) for n, one in enumerate(call.outputs)]
    for n, event in enumerate(call.dataset_events):
        check_event(f"events[{n}]", event)
    scopes = [(one.dataset, one.scope) for one in call.outputs if not isinstance(one, Append)]
    if twice := next((scope for n, scope in enumerate(scopes) if scope in scopes[:n]), None):
        raise BadInput(f"two outputs replace the scope {twice[1]!r} of dataset {twice[0]!r}. Next: give one")
    return Additions(outputs, call.dataset_events)


class _Written(NamedTuple):
    """A generation that a job writes."""

    name: str
    dataset_id: int
    uuid: UUID
    generation_id: int
    number: int
    is_dropped: bool


class _NewScope(NamedTuple):
    """What a scope gets."""

    generation_id: int
    scope: str
    batch_id: int | None
    row_count: int | None
    location: str | None = None
    cursor: str | None = None


@dataclass(slots=True)
class _Record:
    """An output as it is recorded."""

    generation_id: int
    kind: Literal["append", "replace", "pointer"]
    row_count: int | None
    given: int | None
    scope: str | None = None
    location: str | None = None
    cursor: str | None = None


@dataclass(slots=True)
class _Completion:
    """The completion that adds to datasets: its lease, its move, and the generations that the job writes."""

    held: Held
    moved: Moved
    written: dict[str, _Written]
    scopes: list[_NewScope] = field(default_factory=list)


def store_additions(held: Held, moved: Moved, additions: Additions) -> Plan[None]:
    """Store what a completion adds; runs in the transaction that has just ended the job. Raises what is refused."""
    completion = _Completion(held, moved, (yield from _read_written(held.id)))
    # In one order, so that two completions with the same keys do not deadlock.
    order = sorted(range(len(additions.outputs)), key=lambda n: additions.outputs[n][0].dataset)
    for output, _ in additions.outputs:
        _find(completion.written, output.dataset, held.id)
    records: dict[int, _Record] = {}
    for n in order:
        records[n] = yield from _store(completion, *additions.outputs[n])
    for scope in sorted(completion.scopes):
        yield from _put(completion, scope)
    if records:
        yield _record_statement(completion, [records[n] for n in range(len(records))])
    if additions.events:
        yield from _store_events(completion, additions.events)


def _read_written(job_id: int) -> Plan[dict[str, _Written]]:
    rows = yield statement("list_written_generations", {"job_id": job_id})
    return {row[0]: _Written(*row) for row in rows}


def _find(written: dict[str, _Written], dataset: str, job_id: int) -> _Written:
    found = written.get(dataset)
    if found is None:
        raise DatasetConflict(
            f"job {job_id} does not write dataset {dataset!r}. Next: declare it among the writes of its task",
            job_id=job_id,
        )
    if found.is_dropped:
        raise DatasetConflict(
            f"generation {found.number} of dataset {dataset!r}, which job {job_id} writes, was dropped", job_id=job_id
        )
    return found


def _store(completion: _Completion, output: Output, rows: Sequence[str]) -> Plan[_Record]:
    """Store the rows of an output; what its scope gets is kept for later."""
    generation_id = completion.written[output.dataset].generation_id
    if isinstance(output, Pointer):
        completion.scopes.append(
            _NewScope(generation_id, output.scope, None, output.row_count, output.location, output.cursor)
        )
        return _Record(
            generation_id, "pointer", output.row_count, None, output.scope, output.location, output.cursor
        )  # fmt: skip
    if isinstance(output, Append):
        return (yield from _append(completion, generation_id, output, rows))
    if output.staged is not None:
        count = yield from _take_staged(completion, generation_id, output.staged, "read")
        batch_id = output.staged
    else:
        values = {"generation_id": generation_id, "job_id": completion.held.id, "claims": completion.held.claims}
        ((batch_id,),) = yield statement("insert_batch", {**values, "state": "read"})
        count = yield from _insert_rows(
            batch_id, place_keys(0, len(rows)) if output.keys is None else output.keys, rows
        )
    completion.scopes.append(_NewScope(generation_id, output.scope, batch_id, count))
    return _Record(generation_id, "replace", count, count, output.scope)


def _append(completion: _Completion, generation_id: int, output: Append, rows: Sequence[str]) -> Plan[_Record]:
    if output.staged is not None:
        given = yield from _take_staged(completion, generation_id, output.staged, "unread")
        values = {"generation_id": generation_id, "staged": output.staged}
        ((added,),) = yield statement("append_staged_rows", values)
        return _Record(generation_id, "append", added, given)
    order = sorted(range(len(rows)), key=output.keys.__getitem__)
    added = 0
    for part in carried(order, rows):
        columns = {"keys": [output.keys[n] for n in part], "row_values": [rows[n] for n in part]}
        ((count,),) = yield statement("append_rows", {"generation_id": generation_id, **columns})
        added += count
    return _Record(generation_id, "append", added, len(rows))


def _take_staged(completion: _Completion, generation_id: int, staged: int, state: str) -> Plan[int]:
    values = {"id": staged, "job_id": completion.held.id, "claims": completion.held.claims, "state": state}
    rows = yield statement("take_staged_batch", {**values, "generation_id": generation_id})
    if not rows:
        raise _no_such_batch(completion.held, staged)
    return int(rows[0][0])


def _no_such_batch(held: Held, staged: int) -> DatasetConflict:
    return DatasetConflict(
        f"this attempt of job {held.id} has staged no rows as {staged} for that dataset. Next: stage them again",
        job_id=held.id,
    )


def _insert_rows(batch_id: int, keys: Sequence[str], rows: Sequence[str]) -> Plan[int]:
    added = 0
    for part in carried(range(len(rows)), rows):
        columns = {"keys": [keys[n] for n in part], "row_values": [rows[n] for n in part]}
        ((count,),) = yield statement("insert_rows", {"batch_id": batch_id, **columns})
        added += count
    return added


def _put(completion: _Completion, new: _NewScope) -> Plan[None]:
    values = {**new._asdict(), "job_id": completion.held.id, "at": completion.moved.at}
    while not (former := (yield statement("lock_scope", values))):
        if (yield statement("insert_scope", values)):
            return
        # Another completion has just created it.
    yield statement("put_scope", {**values, "former": former[0][0]})


def _record_statement(completion: _Completion, records: Sequence[_Record]) -> Any:
    columns = {
        "places": list(range(len(records))),
        "generations": [one.generation_id for one in records],
        "kinds": [one.kind for one in records],
        "counts": [one.row_count for one in records],
        "given": [one.given for one in records],
        "scopes": [one.scope for one in records],
        "locations": [one.location for one in records],
        "cursors": [one.cursor for one in records],
    }
    held = completion.held
    return statement("insert_outputs", {**columns, "job_id": held.id, "claims": held.claims, "at": completion.moved.at})


def _store_events(completion: _Completion, events: Sequence[DatasetEvent]) -> Plan[None]:
    """Store events with their generations; an event about a dataset that the tenant does not have stores nothing."""
    job_id = completion.held.id
    rows = yield statement("read_job_contracts", {"ids": [job_id]})
    values = {
        "tenant_id": rows[0][3],
        "names": [None if isinstance(event.dataset, UUID) else event.dataset for event in events],
        "uuids": [event.dataset if isinstance(event.dataset, UUID) else None for event in events],
        "numbers": [event.generation for event in events],
    }
    found = {n: row for n, *row in (yield statement("find_event_generations", values))}
    stored = list(_stored_events(completion, events, found))
    if stored:
        names = ("generations", "datasets", "inputs")
        columns = dict(zip(names, map(list, zip(*stored, strict=True)), strict=True))
        yield statement("insert_dataset_events", {"job_id": job_id, **columns})


def _stored_events(
    completion: _Completion, events: Sequence[DatasetEvent], found: dict[int, list[Any]]
) -> Iterator[tuple[int, int, str]]:
    for n, event in enumerate(events, 1):
        if n not in found:
            if isinstance(event.dataset, UUID):
                continue
            raise DatasetNotFound(event.dataset, job_id=completion.held.id)
        dataset_id, name, generation_id = found[n]
        if event.generation is None:
            generation_id = _find(completion.written, name, completion.held.id).generation_id
        elif generation_id is None:
            raise DatasetNotFound(name, event.generation, job_id=completion.held.id)
        yield generation_id, dataset_id, json.dumps(event.input(), ensure_ascii=False)


class StagingVerbs(EngineUser):
    """The verb that stages rows, and the read of what was added; part of `store.datasets`."""

    async def stage(
        self,
        held: Held,
        dataset: str,
        rows: Sequence[Any],
        keys: Sequence[str] | None = None,
        *,
        staged: int | None = None,
    ) -> int:
        """Store rows that the completion of this attempt refers to, as `Append(staged=…)` or `Replace(staged=…)`.

        Returns the number to refer by; give it as `staged` to add more rows, all with keys or all without. A key that
        is staged already is left out. Nobody reads the rows before the completion.
        """
        return (await self.stage_rows(held, dataset, rows, keys, staged=staged)).number

    async def stage_rows(
        self,
        held: Held,
        dataset: str,
        rows: Sequence[Any],
        keys: Sequence[str] | None = None,
        *,
        staged: int | None = None,
        first: int | None = None,
    ) -> StagedRows:
        """Store rows as `stage` does; returns also how many rows are staged by now.

        `first`: the place of the first of these rows, where they have no keys: then a repeat of the call adds nothing.
        """
        validation.check_held(held)
        validation.check_name("dataset", dataset)
        documents = check_rows("rows", rows, keys, self._max_bytes)
        if staged is not None:
            validation.check_integer("staged", staged, 1, validation.MAX_ID)
        if first is not None:
            validation.check_integer("first", first, 0, MAX_STAGED)
        bound = await self._engine.bound_contract(held.contract, held.version)
        plan = partial(_stage, bound, held, dataset, _StagedPart(documents, keys, staged, first))
        return only_answer([await self._engine.run(plan)])

    async def outputs(self, job_id: int) -> Sequence[StoredOutput]:
        """Return what the completion of a job added to datasets, in its order."""
        validation.check_integer("id", job_id, 1, validation.MAX_ID)
        return [StoredOutput._make(row) for row in await self._engine.ask("list_outputs", job_id=job_id)]


class _StagedPart(NamedTuple):
    """Rows to stage: as JSON, with their keys or their places, and the batch that they are added to."""

    rows: Sequence[str]
    keys: Sequence[str] | None
    staged: int | None
    first: int | None


def _stage(bound: BoundContract, held: Held, dataset: str, part: _StagedPart) -> Plan[StagedRows | Refused]:
    try:
        staged: StagedRows = yield Atomic(_stage_rows(bound, held, dataset, part))
    except Refused as refused:
        return refused
    return staged


def _stage_rows(bound: BoundContract, held: Held, dataset: str, part: _StagedPart) -> Plan[StagedRows]:
    """Stage rows. The lease is tested last: the lock on the job, which heartbeats skip, is held for a moment only."""
    written = yield from _read_written(held.id)
    values = {"job_id": held.id, "claims": held.claims}
    if dataset not in written:
        yield from _check_lease(bound, held)
    values["generation_id"] = _find(written, dataset, held.id).generation_id
    staged, count = part.staged, len(part.rows)
    if staged is None:
        ((staged,),) = yield statement("insert_batch", {**values, "state": "staged"})
    counted = yield statement("count_staged_rows", {**values, "id": staged, "added": count})
    if not counted:
        yield from _check_lease(bound, held)
        raise _no_such_batch(held, staged)
    before = counted[0][0]
    if before + count > MAX_STAGED:
        raise DatasetConflict(f"job {held.id} would stage more than {MAX_STAGED:,} rows as {staged}", job_id=held.id)
    if part.first is not None and part.first > before:
        raise DatasetConflict(f"{before} rows are staged as {staged}, and not {part.first}", job_id=held.id)
    keys = place_keys(before if part.first is None else part.first, count) if part.keys is None else part.keys
    added = yield from _insert_rows(staged, keys, part.rows)
    if added < count:
        yield statement("count_staged_rows", {**values, "id": staged, "added": added - count})
    yield from _check_lease(bound, held)
    return StagedRows(staged, before + added)


def _check_lease(bound: BoundContract, held: Held) -> Plan[None]:
    """Refuse an attempt that does not hold its job."""
    batch = Batch(bound, "stage", [held.id], [held])
    rows = yield statement("check_lease", lease_values(batch))
    if not rows:
        raise (yield from explain_one(batch))
    ((refusal, state, holder, since),) = rows
    if refusal is not None:
        raise to_refusal(batch, held.id, refusal, state, holder, since)
