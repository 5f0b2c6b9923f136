"""`tenure schedules`: list and show schedules, pause, resume, run and delete one, and show its next fire times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.command import Output, Store, command, table_output
from tenure.cli.options import Actor, Reason
from tenure.cli.output import card, table, timestamp
from tenure.jobs.formats import format_time, to_one_line

if TYPE_CHECKING:
    from tenure.schedules.status import Fire, StoredSchedule

_Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The schedule's name, or APPLICATION/NAME where several have it.")
]
_Application = Annotated[str | None, typer.Option("--application", help="Only this application's.")]
_Count = Annotated[int, typer.Option("--count", min=1, max=1000, help="How many fire times.")]
_HEAD = ("schedule", "when", "state", "next fire (UTC)", "last fire (UTC)", "result", "job")
_FIRE_HEAD = ("fire time (UTC)", "times", "result", "job", "reason")


@command
async def list_(store: Store, application: _Application = None) -> Output:
    """List the schedules: when they fire, the last fire and the next one, and why nothing fires."""
    found = await store.schedules.list(application=application)
    data = {"schedules": [one.to_json() for one in found]}
    troubles = [to_one_line(f"{one.full_name}: {one.trouble}") for one in found if one.trouble]
    return table_output(data, _HEAD, map(_row, found), "there is no schedule", troubles)


@command
async def show(store: Store, name: _Name) -> Output:
    """Show a schedule: its declaration, its job, and its last fires."""
    one = await _find(store, name)
    fires = await store.schedules.fires(one)
    data = {**one.to_json(), "fires": [fire.to_json() for fire in fires]}
    lines = list(card(f"schedule {one.full_name}, {one.state}", _facts(one), []))
    if fires:
        lines += ["", *table(_FIRE_HEAD, map(_fire_row, fires))]
    return Output(data, lines)


@command
async def pause(store: Store, name: _Name, actor: Actor, reason: Reason = None) -> Output:
    """Stop firing a schedule until it is resumed, also across releases; a paused one keeps its first pause."""
    one = await _find(store, name)
    paused = await store.schedules.pause(one.name, actor=actor, reason=reason, application=one.application)
    text = f"schedule {one.full_name} is {paused.trouble}\nNext: tenure schedules resume {one.full_name}"
    return Output(paused.to_json(), text)


@command
async def resume(store: Store, name: _Name) -> Output:
    """Fire a paused schedule again, from now on; the times of the pause are not made up for."""
    one = await _find(store, name)
    resumed, changed = await store.schedules.resume(one.name, application=one.application)
    state = f"is resumed; next fire: {_when(resumed)}" if changed else "is not paused"
    return Output({**resumed.to_json(), "changed": changed}, f"schedule {one.full_name} {state}")


@command
async def run(store: Store, name: _Name, actor: Actor) -> Output:
    """Make a job of a schedule now, also while it is paused; refused while its last job is live and overlap is skip."""
    one = await _find(store, name)
    fire = await store.schedules.run_now(one.name, application=one.application, actor=actor)
    text = f"schedule {one.full_name} made job {fire.job_id}\nNext: tenure jobs show {fire.job_id}"
    return Output(fire.to_json(), text)


@command
async def next_(store: Store, name: _Name, count: _Count = 5) -> Output:
    """Show the next fire times of a schedule, in its time zone and in UTC; jitter comes on top."""
    one = await _find(store, name)
    upcoming = one.next_to_json(count)
    rows = [(each["local"], timestamp(each["fire_at"]), _jitter(each)) for each in upcoming]
    data = {"name": one.name, "application": one.application, "tz": one.schedule.timing.tz, "next": upcoming}
    notes = [] if one.trouble is None else [f"{one.full_name}: {one.trouble}"]
    head = (one.schedule.timing.tz, "UTC", "jitter")
    return table_output(data, head, rows, "it has no further fire time", notes)


@command
async def delete(store: Store, name: _Name) -> Output:
    """Delete a schedule that was made at run time, or is withdrawn, with its history."""
    one = await _find(store, name)
    await store.schedules.remove(one.name, application=one.application)
    return Output({"deleted": one.full_name}, f"schedule {one.full_name} is deleted")


async def _find(store: Store, name: str) -> StoredSchedule:
    """The schedule of NAME or APPLICATION/NAME; the name of a schedule contains no slash."""
    application, _, own_name = name.rpartition("/")
    return await store.schedules.find(own_name, application=application or None)


def _facts(one: StoredSchedule) -> list[tuple[str, str | None]]:
    job, declared = one.schedule.job, one.schedule
    origin = "code" if one.in_code else "run time"
    return [
        ("trouble", one.trouble),
        ("when", str(declared.timing)),
        ("next fire", _when(one)),
        ("policies", f"missed {declared.missed}, overlap {declared.overlap}, jitter {declared.timing.jitter_s:g} s"),
        ("job", f"{job.type} in queue {job.queue}, contract {job.contract}, tenant {job.tenant_id}"),
        ("payload", str(job.payload)),
        ("declared", f"in {origin} by {one.declared_by}, {timestamp(one.declared_at)} UTC"),
    ]


def _when(one: StoredSchedule) -> str:
    return "none" if one.next_at is None else format_time(one.next_at, one.now)


def _row(one: StoredSchedule) -> tuple[Any, ...]:
    last = one.last_fire
    fired = (None, None, None) if last is None else (last.last_at, last.result, last.job_id)
    return one.full_name, one.schedule.timing, one.state, one.next_at, *fired


def _fire_row(fire: Fire) -> tuple[Any, ...]:
    return fire.fire_at, fire.times, fire.result, fire.job_id, fire.reason


def _jitter(each: dict[str, Any]) -> str:
    return f"+{(each['due_at'] - each['fire_at']).total_seconds():g} s"
