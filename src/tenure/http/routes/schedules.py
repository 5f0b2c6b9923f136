"""Routes for schedules: declare, make, change, list, pause, resume and run them."""

from __future__ import annotations

from typing import Any

from tenure.errors import ScheduleNotFound
from tenure.http.application import ApiRequest
from tenure.http.models import schedules as models
from tenure.schedules.declaration import Schedule, declare
from tenure.schedules.timing import timing


def _schedule(name: str, body: models.ScheduleFields, tenant: str | None) -> Schedule:
    """The schedule of a body; refuses what is wrong."""
    when = timing(body.cron, seconds=body.every_seconds, tz=body.tz, jitter=body.jitter_seconds)
    return declare(name, body.job.job(tenant), when, missed=body.missed, overlap=body.overlap)


async def declare_schedules(request: ApiRequest, body: models.DeclareSchedules) -> dict[str, Any]:
    """Declare the schedules of an application's code. They may be of all tenants: the key must have none."""
    request.caller.require_all_tenants()
    declared = [_schedule(one.name, one, None) for one in body.schedules]
    written = await request.calls.store.schedules.declare(
        declared, application=body.application, by=body.declared_by, starting=body.starting
    )
    return {"written": written}


async def list_schedules(request: ApiRequest, query: models.ScheduleListQuery) -> dict[str, Any]:
    """The schedules with their last fires; a key that is bound to a tenant sees its own."""
    found = await request.calls.store.schedules.list(application=query.application, tenant=request.caller.tenant)
    return {"schedules": [one.to_json() for one in found]}


async def show_schedule(request: ApiRequest, query: models.ScheduleQuery) -> dict[str, Any]:
    """A schedule with its last fires."""
    schedules = request.calls.store.schedules
    found = await schedules.find(request.path_text, application=query.application, tenant=request.caller.tenant)
    return {**found.to_json(), "fires": [one.to_json() for one in await schedules.fires(found)]}


async def list_next_times(request: ApiRequest, query: models.NextQuery) -> dict[str, Any]:
    """The next fire times of a schedule, in UTC and in its time zone."""
    found = await request.calls.store.schedules.find(
        request.path_text, application=query.application, tenant=request.caller.tenant
    )
    return {"name": found.name, "tz": found.schedule.timing.tz, "next": found.next_to_json(query.count)}


async def put_schedule(request: ApiRequest, body: models.PutSchedule) -> dict[str, Any]:
    """Make a schedule at run time, or change it; refused for one that is declared in code, or another tenant's."""
    request.caller.resolve_tenant(body.job.tenant_id)
    made = await request.calls.store.schedules.put(
        _schedule(request.path_text, body, request.caller.tenant), application=body.application,
        by=request.caller.actor, tenant=request.caller.tenant,
    )  # fmt: skip
    return made.to_json()


async def delete_schedule(request: ApiRequest, query: models.ScheduleQuery) -> dict[str, Any]:
    """Delete a schedule that was made at run time, with its history; refused for one that is declared in code."""
    name = request.path_text
    removed = await request.calls.store.schedules.remove(
        name, application=query.application, tenant=request.caller.tenant
    )
    if not removed:
        raise ScheduleNotFound(name, query.application)
    return {"deleted": name}


async def pause_schedule(request: ApiRequest, body: models.PauseSchedule) -> dict[str, Any]:
    """Stop firing a schedule until it is resumed; a paused one keeps its first pause."""
    paused = await request.calls.store.schedules.pause(
        request.path_text, actor=request.caller.actor, reason=body.reason, application=body.application,
        tenant=request.caller.tenant,
    )  # fmt: skip
    return paused.to_json()


async def resume_schedule(request: ApiRequest, body: models.OneSchedule) -> dict[str, Any]:
    """Fire a paused schedule again, from now on; the times of the pause are not made up for."""
    found, changed = await request.calls.store.schedules.resume(
        request.path_text, application=body.application, tenant=request.caller.tenant
    )
    return {"schedule": found.to_json(), "changed": changed}


async def run_schedule(request: ApiRequest, body: models.OneSchedule) -> dict[str, Any]:
    """Make a job of a schedule now, also while it is paused; refused while its last job is live and overlap is skip."""
    schedules, tenant = request.calls.store.schedules, request.caller.tenant
    found = await schedules.find(request.path_text, application=body.application, tenant=tenant)
    fire = await schedules.run_now(found.name, application=found.application, actor=request.caller.actor, tenant=tenant)
    return fire.to_json()
