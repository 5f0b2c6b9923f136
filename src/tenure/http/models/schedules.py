"""Requests and responses of the routes for schedules."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StrictBool, StrictInt, StrictStr

from tenure.http.models import fields
from tenure.http.models.dataset_uses import Uses, dataset_uses
from tenure.http.models.fields import RequestBody, described, optional
from tenure.jobs.job import NewJob
from tenure.jobs.unique import OnConflict
from tenure.schedules.decision import Missed, Overlap
from tenure.schedules.declaration import job_from_json
from tenure.schedules.timing import MAX_EVERY_S, MAX_JITTER_S

_ANY_OWNER = "Its application; needed only where several have a schedule of this name."


class UniqueRule(RequestBody):
    """How a job is unique among others of its tenant, type and contract."""

    mode: Literal["waiting", "active", "period"] = described("While one waits, waits or runs, or for a period.")
    by: Annotated[list[StrictStr], Field(min_length=1, max_length=100)] | None = optional(
        "The arguments that must be equal; default all."
    )
    on_conflict: OnConflict = described("What becomes of the second job; default return.", default="return")
    period_ms: fields.Milliseconds | None = optional("Of mode period: its length in milliseconds.")


class ScheduledJob(RequestBody):
    """The job of each fire time."""

    type: fields.Type = described("Which handler runs it.")
    payload: Any = described("The arguments; default none.", default={})
    contract: fields.Contract = described("The contract that it follows; default standard.", default="standard")
    queue: fields.Queue = described("Its queue; default default.", default="default")
    tenant_id: fields.Tenant | None = optional("Its tenant; default the key's, else default.")
    priority: Annotated[StrictInt, Field(ge=0, le=9), fields.AS_WHOLE] = described(
        "0 (first) to 9; default 5.", default=5
    )
    max_attempts: fields.Count | None = optional("The limit of attempts, as the contract counts them.")
    delay_ms: fields.Milliseconds | None = optional("Milliseconds after the fire before it may be claimed.")
    key: Annotated[StrictStr, fields.text("key")] | None = optional(
        "An idempotency key; all fires with it together make one job."
    )
    trace_id: Annotated[StrictStr, fields.text("trace_id")] | None = optional("Its trace id; default one is made.")
    correlation_id: Annotated[StrictStr, fields.text("correlation_id")] | None = optional(
        "Its correlation id; default the schedule's name and the fire time."
    )
    notify: StrictBool = described("Whether workers are woken; default true.", default=True)
    unique: UniqueRule | None = optional("At most one such job; default any number.")
    expires_ms: fields.Milliseconds | None = optional(
        "The job is cancelled if it was not claimed within so many milliseconds."
    )
    reads: Uses | None = optional("The datasets that it reads; default none.")
    writes: Uses | None = optional("The datasets that it writes; default none.")

    def job(self, tenant: str | None) -> NewJob:
        """The job that it describes; without a tenant of its own it has this one."""
        given = self.model_dump(exclude={"reads", "writes"})
        job = job_from_json({**given, "tenant_id": given["tenant_id"] or tenant or "default"})
        return replace(job, reads=dataset_uses(self.reads), writes=dataset_uses(self.writes))


class ScheduleFields(RequestBody):
    """When a schedule fires, and what happens then: either `cron` or `every_seconds`."""

    cron: Annotated[StrictStr, Field(max_length=200)] | None = optional(
        "Five fields, or a name such as @daily.", examples=["*/5 * * * *"]
    )
    every_seconds: Annotated[StrictInt, Field(ge=1, le=MAX_EVERY_S), fields.AS_WHOLE] | None = optional(
        "An interval in seconds, counted from 1970 in UTC.", examples=[300]
    )
    tz: Annotated[StrictStr, Field(max_length=100)] = described(
        "The IANA time zone of the cron expression; default UTC.", default="UTC", examples=["Europe/Berlin"]
    )
    jitter_seconds: Annotated[fields.Number, fields.up_to(MAX_JITTER_S)] = described(
        "The longest delay of a fire; default 0.", default=0
    )
    missed: Missed = described("What becomes of fire times that nobody fired; default once.", default="once")
    overlap: Overlap = described(
        "Whether a fire is skipped while the job of the last one waits or runs; default skip.", default="skip"
    )
    job: ScheduledJob = described("What is enqueued at each fire time.")


class PutSchedule(ScheduleFields):
    """A schedule that is made or changed at run time."""

    application: fields.Application = described("The application that it belongs to.")


class DeclaredSchedule(ScheduleFields):
    """A schedule of an application's code."""

    name: fields.ScheduleName = described("Its name, unique in its application.")


class DeclareSchedules(RequestBody):
    """The schedules of an application's code."""

    application: fields.Application = described("The application.")
    schedules: Annotated[list[DeclaredSchedule], Field(max_length=1_000)] = described("Its schedules.")
    declared_by: Annotated[StrictStr, fields.text("worker")] | None = optional("The worker that declares them.")
    starting: StrictBool = described(
        "Whether the worker starts; false: it repeats what it declared. Default true.", default=True
    )


class OneSchedule(RequestBody):
    """Which schedule the path names."""

    application: fields.Application | None = optional(_ANY_OWNER)


class PauseSchedule(OneSchedule):
    """An operator pauses a schedule."""

    reason: fields.Reason | None = optional("Why, for people.")


class ScheduleQuery(BaseModel):
    """Of which application."""

    application: Annotated[str | None, fields.text("application"), described(_ANY_OWNER)] = None


class ScheduleListQuery(BaseModel):
    """Which schedules are listed."""

    application: Annotated[str | None, fields.text("application"), described("Only this application's.")] = None


class NextQuery(ScheduleQuery):
    """How many fire times."""

    count: Annotated[int, described("How many fire times; default 5.", ge=1, le=1_000)] = 5


class SchedulesDeclared(BaseModel):
    """What became of declared schedules."""

    written: list[str] = described("The names of those that are new or changed.", examples=[["report"]])


class Fire(BaseModel):
    """What happened at a fire time, or at missed ones."""

    fire_at: datetime = described("The fire time, without jitter; the first of missed ones.")
    last_at: datetime = described("The last of missed fire times; else the same.")
    at: datetime = described("When it was decided.")
    times: int = described("How many fire times this stands for; from 1000 on a lower bound.", examples=[1])
    job_id: fields.Id | None = described("The job that was made; null: none.")
    by_hand: bool = described("Whether a person asked for it.", examples=[False])
    result: Literal["enqueued", "skipped", "failed"] = described("What became of it.")
    reason: str | None = described("Why there is no job; of a fire by hand, who asked for it.")


class Schedule(BaseModel):
    """A schedule now."""

    id: fields.Id = described("Its id.", examples=["7"])
    name: str = described("Its name, unique in its application.", examples=["report"])
    application: str = described("The application that it belongs to.", examples=["shop"])
    tenant_id: fields.TenantId
    state: Literal["active", "paused", "withdrawn", "overdue", "finished"] = described("Whether it fires.")
    trouble: str | None = described("Why it does not fire, or why its last fire made no job; null: all is well.")
    in_code: bool = described("Whether code declares it; false: it was made at run time.", examples=[True])
    cron: str | None = described("Its cron expression; null: it has an interval.", examples=["*/5 * * * *"])
    every_seconds: int | None = described("Its interval; null: it has a cron expression.")
    tz: str = described("The time zone of the cron expression.", examples=["Europe/Berlin"])
    jitter_seconds: float = described("The longest delay of a fire.", examples=[0])
    missed: Missed = described("What becomes of fire times that nobody fired.")
    overlap: Overlap = described("Whether a fire is skipped while the job of the last one waits or runs.")
    job: dict[str, Any] = described("The job of each fire time.", examples=[{"type": "report", "payload": {}}])
    declared_by: str | None = described("The worker, process or person that declared it last.")
    declared_at: datetime = described("When it was declared last.")
    fire_at: datetime | None = described("The next fire time; null: there is none.")
    next_at: datetime | None = described("When it is due, with its jitter.")
    paused_at: datetime | None = described("Since when it is paused; null: it is not.")
    paused_by: str | None = described("Who paused it.", examples=["ann"])
    pause_reason: str | None = described("Why it is paused.")
    withdrawn_at: datetime | None = described("Since when no live worker's code declares it; null: one does.")
    now: datetime = described("The database's time of this answer.")
    last_fire: Fire | None = described("Its last fire; null: there was none.")


class ScheduleList(BaseModel):
    """Schedules."""

    schedules: list[Schedule] = described("The schedules, by application and name; at most 1000.")


class ScheduleDetails(Schedule):
    """A schedule with its last fires."""

    fires: list[Fire] = described("Its last 20 fires, newest first.")


class ScheduleResumed(BaseModel):
    """A schedule that was resumed."""

    schedule: Schedule = described("The schedule.")
    changed: bool = described("Whether it was paused.", examples=[True])


class ScheduleDeleted(BaseModel):
    """A schedule that was deleted."""

    deleted: str = described("Its name.", examples=["report"])


class FireTime(BaseModel):
    """A fire time to come."""

    fire_at: datetime = described("The fire time.")
    local: str = described("The same in the schedule's time zone.", examples=["2026-11-19T09:00:00+01:00"])
    due_at: datetime = described("When it is due, with its jitter.")


class NextTimes(BaseModel):
    """The next fire times of a schedule."""

    name: str = described("The schedule's name.", examples=["report"])
    tz: str = described("Its time zone.", examples=["Europe/Berlin"])
    next: list[FireTime] = described("The fire times, soonest first; also of a paused schedule.")
