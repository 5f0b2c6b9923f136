"""Schedules: declare, change, pause, resume and list them. `schedule_fires.py` has the verbs that make their jobs.

Every change locks the schedule's row first, so it happens before or after a fire, never in between. A declaration in
code belongs to its application. Two releases of an application may run at once: the newer one's declaration stays while
a live worker has it, also when workers of the older release start.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from tenure.errors import BadInput, ScheduleConflict, ScheduleNotFound
from tenure.jobs import validation
from tenure.postgres.locked_schedule import LockedSchedule, atomically, lock
from tenure.postgres.schedule_fires import ScheduleFireVerbs
from tenure.postgres.statement import Plan, Row, statement
from tenure.schedules.declaration import Schedule
from tenure.schedules.status import Fire, StoredSchedule

_log = logging.getLogger("tenure")

#: How many earlier declarations of a schedule are remembered, to tell an older release from a newer one.
_EARLIER = 20
#: The most schedules that one call declares, and that a list shows.
MANY = 1_000


class Schedules(ScheduleFireVerbs):
    """Operations on schedules; `store.schedules`."""

    async def declare(
        self, schedules: Sequence[Schedule], *, application: str, by: str | None = None, starting: bool = True
    ) -> list[str]:
        """Store the schedules of an application's code; returns the names of those that were written.

        A schedule whose declaration is stored already is only noted as declared now, and that only if the worker is
        `starting`. One that a live worker of a newer release declares otherwise stays.
        """
        validation.check_name("application", application)
        if by is not None:
            validation.check_name("worker", by)
        validation.check_integer("number of schedules", len(schedules), 0, MANY)
        names = [one.name for one in schedules]
        if twice := [name for name in names if names.count(name) > 1]:
            raise BadInput(f"schedule {twice[0]} is declared twice. Next: give one of them another name=")
        for one in schedules:
            await self._check_job(one)
        fingerprints = {one.name: one.fingerprint for one in schedules}
        known = await self._engine.ask(
            "touch_schedules" if starting else "list_declared", application=application, fingerprints=fingerprints
        )
        unchanged = {name for (name,) in known}
        written = []
        for one in schedules:
            # In a time zone the next fire may be another one with newer zone data.
            if one.name in unchanged and (one.timing.tz == "UTC" or not starting):
                continue
            if await self._engine.run(partial(_declare_atomically, one, application, by)):
                written.append(one.name)
        return written

    async def put(self, schedule: Schedule, *, application: str, by: str, tenant: str | None = None) -> StoredSchedule:
        """Create a schedule at run time, or change it; refuses one that is declared in code, or another tenant's."""
        validation.check_name("application", application)
        validation.check_name("actor", by)
        await self._check_job(schedule)
        await self._engine.run(lambda: atomically(_put(schedule, application, by, tenant)))
        return await self.find(schedule.name, application=application)

    async def remove(self, name: str, *, application: str | None = None, tenant: str | None = None) -> bool:
        """Delete a schedule and its history; returns whether there was one. One that is declared in code is refused."""
        try:
            found = await self.find(name, application=application, tenant=tenant)
        except ScheduleNotFound:
            return False
        return await self._engine.run(lambda: atomically(_remove(found.application, found.name)))

    async def withdraw(self, application: str, keep: Mapping[str, str] | None = None) -> Sequence[str]:
        """Withdraw an application's schedules in code that no live worker declares, except `keep`; returns names."""
        rows = await self._engine.ask("withdraw_schedules", application=application, keep=dict(keep or {}))
        for (name,) in rows:
            _log.info("application %s no longer declares schedule %s: it does not fire any more", application, name)
        return [name for (name,) in rows]

    async def list(
        self, *, application: str | None = None, tenant: str | None = None, name: str | None = None
    ) -> list[StoredSchedule]:
        """Return the schedules with their last fires, by application and name; at most 1,000."""
        if application is not None:
            validation.check_name("application", application)
        values = {"application": application, "tenant_id": tenant, "name": name, "limit": MANY}
        return [_stored(row) for row in await self._engine.ask("list_schedules", **values)]

    async def find(self, name: str, *, application: str | None = None, tenant: str | None = None) -> StoredSchedule:
        """Return a schedule; refuses a name that does not exist, and one of several applications."""
        validation.check_name("schedule", name)
        found = await self.list(application=application, tenant=tenant, name=name)
        if not found:
            raise ScheduleNotFound(name, application)
        if len(found) > 1:
            owners = ", ".join(one.application for one in found)
            raise BadInput(f"several applications have a schedule {name!r}: {owners}. Next: name the application")
        return found[0]

    async def fires(self, schedule: StoredSchedule, limit: int = 20) -> Sequence[Fire]:
        """Return the last fires of a schedule, newest first."""
        validation.check_integer("limit", limit, 1, 1_000)
        rows = await self._engine.ask("list_schedule_fires", id=schedule.id, limit=limit)
        return [Fire._make(row) for row in rows]

    async def pause(
        self, name: str, *, actor: str, reason: str | None = None, application: str | None = None,
        tenant: str | None = None,
    ) -> StoredSchedule:  # fmt: skip
        """Stop firing a schedule until it is resumed; a paused one keeps its first pause."""
        why = None if reason is None else validation.check_name("reason", reason)
        found = await self.find(name, application=application, tenant=tenant)
        values = {"application": found.application, "name": name, "reason": why}
        if not await self._engine.ask("pause_schedule", actor=validation.check_name("actor", actor), **values):
            raise ScheduleNotFound(name, application)
        return await self.find(name, application=found.application)

    async def resume(
        self, name: str, *, application: str | None = None, tenant: str | None = None
    ) -> tuple[StoredSchedule, bool]:
        """Fire a paused schedule again, from now on; returns it, and whether it was paused."""
        found = await self.find(name, application=application, tenant=tenant)
        changed = await self._engine.run(lambda: atomically(_resume(found.application, name)))
        return await self.find(name, application=found.application), changed

    async def _check_job(self, schedule: Schedule) -> None:
        """Refuse a job that could not be enqueued."""
        bound = await self._engine.bound_contract(schedule.job.contract, schedule.job.version)
        validation.check_new_job(bound.contract, schedule.job, self._max_bytes)


def _declare_atomically(schedule: Schedule, application: str, by: str | None) -> Plan[bool]:
    return atomically(_declare(schedule, application, by))


def _insert_or_lock(schedule: Schedule, application: str, by: str | None, *, in_code: bool) -> Plan[LockedSchedule]:
    """Lock a schedule, which is inserted if the application has none of this name; a new one has no fingerprint."""
    values = {
        "application": application, "name": schedule.name, "tenant_id": schedule.job.tenant_id, "in_code": in_code,
        "declaration": schedule.to_json(), "declared_by": by,
    }  # fmt: skip
    while True:
        yield statement("insert_schedule", values)
        if (locked := (yield from lock(application, schedule.name))) is not None:  # else it was deleted meanwhile
            return locked


def _declare(schedule: Schedule, application: str, by: str | None) -> Plan[bool]:
    """Store a schedule in code; returns whether it was written."""
    locked = yield from _insert_or_lock(schedule, application, by, in_code=True)
    fingerprint = schedule.fingerprint
    if locked.in_code and locked.withdrawn_at is None and fingerprint in locked.earlier:
        ((is_used,),) = yield statement("is_schedule_declared", {
            "application": application, "name": schedule.name, "fingerprint": locked.fingerprint,
            "declared_at": locked.declared_at,
        })  # fmt: skip
        if is_used:  # this process runs an older release
            return False
    is_other = fingerprint != locked.fingerprint
    yield from _write(schedule, locked, by, in_code=True)
    return is_other


def _put(schedule: Schedule, application: str, by: str, tenant: str | None) -> Plan[None]:
    """Store a schedule that is made at run time."""
    locked = yield from _insert_or_lock(schedule, application, by, in_code=False)
    if locked.in_code and locked.withdrawn_at is None:
        raise ScheduleConflict(
            f"schedule {locked.key} is declared in the code of the application. Next: change it there, or choose "
            "another name"
        )
    if tenant is not None and locked.tenant_id != tenant:
        raise ScheduleConflict(f"schedule {locked.key} belongs to another tenant. Next: choose another name")
    yield from _write(schedule, locked, by, in_code=False)


def _write(schedule: Schedule, locked: LockedSchedule, by: str | None, *, in_code: bool) -> Plan[None]:
    """Store a declaration. With other fire times than before it fires from now on; the past is not made up for."""
    fire_at, now = locked.fire_at, locked.now
    was_active = locked.fingerprint and locked.withdrawn_at is None
    same_times = was_active and replace(locked.timing, jitter_s=0.0) == replace(schedule.timing, jitter_s=0.0)
    # Of unchanged fire times the ones that are due stay due. A later one is computed anew: the zone may have changed.
    if not same_times or fire_at is None or fire_at > now:
        fire_at = next(schedule.timing.times(now), None)
    earlier = list(dict.fromkeys((*locked.earlier, locked.fingerprint)))
    yield statement("update_schedule", {
        "id": locked.id, "tenant_id": schedule.job.tenant_id, "in_code": in_code, "declaration": schedule.to_json(),
        "fingerprint": schedule.fingerprint, "declared_by": by, "fire_at": fire_at,
        "next_at": None if fire_at is None else schedule.timing.due_at(locked.key, fire_at),
        "earlier": [one for one in earlier if one not in ("", schedule.fingerprint)][-_EARLIER:],
    })  # fmt: skip


def _remove(application: str, name: str) -> Plan[bool]:
    locked = yield from lock(application, name)
    if locked is None:
        return False
    if locked.in_code and locked.withdrawn_at is None:
        raise ScheduleConflict(
            f"schedule {locked.key} is declared in the code of the application, whose workers would make it again. "
            f"Next: remove it there, or tenure schedules pause {locked.key}"
        )
    yield statement("delete_schedule", {"id": locked.id})
    return True


def _resume(application: str, name: str) -> Plan[bool]:
    """Resume a schedule; the times that passed during the pause are not made up for."""
    locked = yield from lock(application, name)
    if locked is None or locked.paused_at is None:
        return False
    fire_at = next(locked.timing.times(locked.now), None)
    next_at = None if fire_at is None else locked.timing.due_at(locked.key, fire_at)
    yield statement("resume_schedule", {"id": locked.id, "fire_at": fire_at, "next_at": next_at})
    return True


def _stored(row: Row) -> StoredSchedule:
    """A row of list_schedules.sql."""
    locked, last = LockedSchedule._make(row[:18]), row[18:]
    return StoredSchedule(
        locked.id, locked.application, locked.tenant_id, locked.in_code, locked.schedule, locked.declared_by,
        locked.declared_at, locked.fire_at, locked.next_at, locked.paused_at, locked.paused_by, locked.pause_reason,
        locked.withdrawn_at, locked.now, None if last[0] is None else Fire._make(last),
    )  # fmt: skip
