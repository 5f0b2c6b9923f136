"""Cutover and rollback: change the current generations of a set of datasets in one transaction, with a log.

    cutover    lock the datasets ─▶ check the generations ─▶ change tenure.dataset.current_id of all ─▶ commit
    rollback   the same, to the generations before the last cutover ─▶ commit ─▶ cancel the jobs that wait to write

A rollback that dies after its commit is finished by upkeep. A job that runs goes on; its completion is accepted, and
changes no current generation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Literal, NamedTuple

from tenure.errors import BadInput, DatasetConflict, DatasetNotFound, Refused
from tenure.jobs import validation
from tenure.jobs.dataset import MAX_SET, RolledBack, Switch, Switched
from tenure.postgres.datasets.pins import lock_datasets
from tenure.postgres.engine import EngineUser
from tenure.postgres.operate import OperatorVerbs
from tenure.postgres.statement import Atomic, Plan, statement

#: How many jobs one call cancels.
_CANCELLED: Final = 1_000


class SwitchVerbs(EngineUser):
    """The verbs that change current generations; part of `store.datasets`."""

    async def cutover(
        self, generations: Mapping[str, int], *, actor: str, reason: str | None = None, tenant_id: str = "default"
    ) -> Switch:
        """Make these generations (dataset → number) current, all in one transaction, or none.

        Refuses a generation that was rolled back or dropped, and a set that is current already.
        """
        _check_call(list(generations), actor, reason, tenant_id)
        for name, number in generations.items():
            validation.check_integer(f"generation of dataset {name!r}", number, 1, validation.MAX_ID)
        return await self._switch(partial(_cut_over, generations, tenant_id, actor, reason))

    async def rollback(
        self, names: Sequence[str], *, actor: str, reason: str | None = None, tenant_id: str = "default"
    ) -> RolledBack:
        """Undo the last cutover of these datasets for its whole set, and cancel the jobs that wait to write to it.

        Refuses datasets that were not switched together, and a set of which one was switched again since. Waits for
        open transactions that make jobs which read or write the generations of the set.
        """
        _check_call(names, actor, reason, tenant_id)
        switch = await self._switch(partial(_roll_back, names, tenant_id, actor, reason))
        cancelled, left = await self._cancel_writers(switch.id, actor, reason)
        return RolledBack(switch, cancelled, left)

    async def finish_rollbacks(self) -> int:
        """Cancel the jobs that wait to write to what was rolled back, where a process left them; returns how many."""
        cancelled = 0
        for switch_id, _, actor, reason in await self._engine.ask("find_unfinished_rollbacks", limit=100):
            cancelled += len((await self._cancel_writers(switch_id, actor, reason))[0])
        return cancelled

    async def switches(
        self, *, dataset: str | None = None, tenant_id: str = "default", limit: int = 50, before: int | None = None
    ) -> Sequence[Switch]:
        """Return cutovers and rollbacks, newest first; `before`: the id of the last one of the page before."""
        validation.check_name("tenant_id", tenant_id)
        validation.check_integer("limit", limit, 1, validation.MAX_BATCH)
        if dataset is not None:
            validation.check_name("dataset", dataset)
        if before is not None:
            validation.check_integer("before", before, 1, validation.MAX_ID)
        values = {"dataset": dataset, "tenant_id": tenant_id, "limit": limit, "before": before}
        rows = await self._engine.ask("list_switches", **values)
        return [Switch._make((*row, tuple(Switched(*one) for one in json.loads(items)))) for *row, items in rows]

    async def _switch(self, plan: Callable[[], Plan[Switch]]) -> Switch:
        def atomic() -> Plan[Switch]:
            switch: Switch = yield Atomic(plan())
            return switch

        return await self._engine.run(atomic)

    async def _cancel_writers(self, switch_id: int, actor: str, reason: str | None) -> tuple[list[int], dict[int, str]]:
        """Cancel the jobs that wait to write to what a rollback left; returns them, and why others go on."""
        operator = OperatorVerbs(self._engine, self._max_bytes)
        cancelled: list[int] = []
        left: dict[int, str] = {}
        after = 0
        why = f"rollback {switch_id}" if reason is None else f"rollback {switch_id}: {reason}"[:1_000]
        while rows := await self._engine.ask("list_waiting_writers", id=switch_id, after=after, limit=_CANCELLED):
            ids = [job_id for (job_id,) in rows]
            for job_id, one in zip(ids, await operator.cancel_waiting(ids, reason=why, actor=actor), strict=True):
                if isinstance(one, Refused):
                    left[job_id] = str(one)
                else:
                    cancelled.append(job_id)
            after = ids[-1]
        await self._engine.ask("finish_rollback", id=switch_id)
        return cancelled, left


def _check_call(names: Sequence[str], actor: str, reason: str | None, tenant_id: str) -> None:
    validation.check_name("actor", actor)
    validation.check_name("tenant_id", tenant_id)
    if reason is not None:
        validation.check_name("reason", reason)
    if not names:
        raise BadInput("there is no dataset to switch. Next: name at least one")
    validation.check_integer("number of datasets", len(names), 1, MAX_SET)
    for name in names:
        validation.check_name("dataset", name)


class _Change(NamedTuple):
    """A dataset of a switch: its generations before and after, by id and by number."""

    dataset_id: int
    name: str
    before_id: int
    before: int
    after_id: int
    after: int


def _cut_over(generations: Mapping[str, int], tenant_id: str, actor: str, reason: str | None) -> Plan[Switch]:
    locked = yield from lock_datasets(tenant_id, list(generations))
    values = {
        "datasets": [dataset_id for dataset_id, _ in locked.values()],
        "numbers": [generations[name] for name in locked],
    }
    found = {row[0]: row[1:] for row in (yield statement("lock_generations", values))}
    numbers = yield from _numbers([current_id for _, current_id in locked.values()])
    changes = []
    for name, (dataset_id, current_id) in locked.items():
        if dataset_id not in found:
            raise DatasetNotFound(name, generations[name])
        after_id, number, is_rolled_back, is_dropped = found[dataset_id]
        if is_rolled_back or is_dropped:
            raise _unusable(name, number, "rolled back" if is_rolled_back else "dropped")
        if after_id != current_id:
            changes.append(_Change(dataset_id, name, current_id, numbers[current_id], after_id, number))
    if not changes:
        raise DatasetConflict(
            "these generations are current already; nothing was done. Next: name the generations to change to"
        )
    return (yield from _apply("cutover", changes, tenant_id, actor, reason))


def _unusable(name: str, number: int, what: str) -> DatasetConflict:
    return DatasetConflict(
        f"generation {number} of dataset {name!r} was {what}: it never becomes current again. Next: name another one"
    )


def _numbers(ids: Sequence[int]) -> Plan[dict[int, int]]:
    """The numbers of generations, by id."""
    rows = yield statement("read_generation_numbers", {"ids": ids})
    return dict(rows)


def _apply(
    kind: Literal["cutover", "rollback"],
    changes: Sequence[_Change],
    tenant_id: str,
    actor: str,
    reason: str | None,
    undoes: int | None = None,
) -> Plan[Switch]:
    columns = {
        "datasets": [one.dataset_id for one in changes],
        "before_ids": [one.before_id for one in changes],
        "after_ids": [one.after_id for one in changes],
    }
    values = {"kind": kind, "tenant_id": tenant_id, "actor": actor, "reason": reason, "undoes": undoes}
    ((switch_id, at),) = yield statement("switch_datasets", {**values, **columns})
    switched = sorted(Switched(one.name, one.before, one.after) for one in changes)
    return Switch(switch_id, kind, tenant_id, at, actor, reason, undoes, tuple(switched))


def _roll_back(names: Sequence[str], tenant_id: str, actor: str, reason: str | None) -> Plan[Switch]:
    # The set may have more datasets than were named: find it, lock all of them in one order, and look again.
    undoes = yield from _last_cutover(names, tenant_id)
    undone = [_Change(*row) for row in (yield statement("list_switched", {"id": undoes}))]
    locked = yield from lock_datasets(tenant_id, [one.name for one in undone])
    if (yield from _last_cutover([one.name for one in undone], tenant_id)) != undoes or any(
        locked[one.name][1] != one.after_id for one in undone
    ):
        raise DatasetConflict("another switch came between; nothing was done. Next: look at the datasets and try again")
    values = {"ids": sorted(each for one in undone for each in (one.before_id, one.after_id))}
    states = {row[0]: row[1:] for row in (yield statement("lock_generations_alone", values))}
    for one in undone:
        number, is_rolled_back, is_dropped = states[one.before_id]
        if is_rolled_back or is_dropped:
            raise _unusable(one.name, number, "rolled back" if is_rolled_back else "dropped")
    changes = [_Change(one.dataset_id, one.name, one.after_id, one.after, one.before_id, one.before) for one in undone]
    return (yield from _apply("rollback", changes, tenant_id, actor, reason, undoes))


def _last_cutover(names: Sequence[str], tenant_id: str) -> Plan[int]:
    """The cutover that is the last one of all these datasets; refuses datasets without one, or with several."""
    rows = yield statement("find_last_cutovers", {"tenant_id": tenant_id, "names": names})
    last: dict[str, int | None] = {name: switch_id for _, name, switch_id in rows}
    for name in names:
        if name not in last:
            raise DatasetNotFound(name)
        if last[name] is None:
            raise DatasetConflict(f"dataset {name!r} has no cutover to undo. Next: make a cutover to the generation")
    first = last[names[0]]
    if other := next((name for name in names if last[name] != first), None):
        raise DatasetConflict(
            f"datasets {names[0]!r} and {other!r} were last switched by different cutovers, {first} and {last[other]}. "
            "Next: roll back the later one first, by the datasets of its set"
        )
    assert first is not None
    return first
