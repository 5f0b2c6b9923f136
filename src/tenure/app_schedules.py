"""An application's schedules: declared above its tasks, or made at run time.

@app.every("0 3 * * *", tz="Europe/Berlin")    above @app.task; workers declare it when they start
await app.schedule("name", task.call(…), …)    create or change one at run time
app.schedules                                  list, pause, resume and run them
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from tenure.context import current
from tenure.errors import UNREACHABLE, BadInput, NotPermitted
from tenure.jobs import validation
from tenure.jobs.keyword_options import only_known_options
from tenure.jobs.live_worker import host_and_pid
from tenure.schedules.decision import Missed, Overlap
from tenure.schedules.declaration import Schedule, declare
from tenure.schedules.status import Fire, StoredSchedule
from tenure.schedules.timing import timing
from tenure.task import Call, Task, Ticket

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.client.connections import JobClient

_log = logging.getLogger("tenure")
#: Seconds between two declarations of a running worker: a newer release may have gone meanwhile.
_DECLARE_AGAIN_S = 60.0


class _WithoutArguments(Protocol):
    """A task that can be called without arguments."""

    def call(self) -> Call[Any]: ...


Plain = TypeVar("Plain", bound=_WithoutArguments)
AnyTask = TypeVar("AnyTask", bound=Task[..., Any])


class EveryWithoutArguments(Protocol):
    """The type of `@app.every(…)`: takes a task that needs no arguments."""

    def __call__(self, task: Plain, /) -> Plain: ...


class EveryWithArguments(Protocol):
    """The type of `@app.every(…, args=…)`: the arguments are checked when the module is imported."""

    def __call__(self, task: AnyTask, /) -> AnyTask: ...


@dataclass(frozen=True, slots=True)
class AppSchedules:
    """The stored schedules of one application: `app.schedules`."""

    client: Callable[[], Awaitable[JobClient]]
    application: str

    async def list(self) -> Sequence[StoredSchedule]:
        """Return the application's schedules with their last fires, by name."""
        return await (await self.client()).schedules.list(application=self.application)

    async def show(self, name: str) -> StoredSchedule:
        """Return a schedule."""
        return await (await self.client()).schedules.find(name, application=self.application)

    async def fires(self, name: str, limit: int = 20) -> Sequence[Fire]:
        """Return the last fires of a schedule, newest first."""
        return await (await self.client()).schedules.fires(await self.show(name), limit)

    async def next(self, name: str, count: int = 5) -> Sequence[datetime]:
        """Return the next fire times of a schedule, in UTC and without jitter."""
        return (await self.show(name)).upcoming(validation.check_integer("count", count, 1, 1_000))

    async def pause(self, name: str, *, reason: str | None = None, actor: str = "app") -> StoredSchedule:
        """Stop firing a schedule until it is resumed."""
        schedules = (await self.client()).schedules
        return await schedules.pause(name, actor=actor, reason=reason, application=self.application)

    async def resume(self, name: str) -> StoredSchedule:
        """Fire a paused schedule again, from now on."""
        found, _ = await (await self.client()).schedules.resume(name, application=self.application)
        return found

    async def run(self, name: str, *, actor: str = "app") -> Ticket[Any]:
        """Make a job of a schedule at once; refused with overlap="skip" while the job of its last fire is live."""
        fire = await (await self.client()).schedules.run_now(name, application=self.application, actor=actor)
        return Ticket(fire.job_id or 0)


class ScheduleVerbs:
    """The part of `App` that is about schedules."""

    name: str | None
    _schedules: dict[str, Schedule]
    if TYPE_CHECKING:

        @property
        def application(self) -> str: ...
        async def _client(self) -> JobClient: ...

    @overload
    def every(
        self, cron: str | None = None, /, *, seconds: int | None = None, minutes: int | None = None,
        hours: int | None = None, days: int | None = None, tz: str = "UTC", name: str | None = None,
        missed: Missed = "once", overlap: Overlap = "skip", jitter: float = 0.0,
    ) -> EveryWithoutArguments: ...  # fmt: skip
    @overload
    def every(
        self, cron: str | None = None, /, *, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None,
        seconds: int | None = None, minutes: int | None = None, hours: int | None = None, days: int | None = None,
        tz: str = "UTC", name: str | None = None, missed: Missed = "once", overlap: Overlap = "skip",
        jitter: float = 0.0,
    ) -> EveryWithArguments: ...  # fmt: skip
    @only_known_options("@app.every")
    def every(
        self, cron: str | None = None, /, *, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None,
        seconds: int | None = None, minutes: int | None = None, hours: int | None = None, days: int | None = None,
        tz: str = "UTC", name: str | None = None, missed: Missed = "once", overlap: Overlap = "skip",
        jitter: float = 0.0,
    ) -> Any:  # fmt: skip
        """Enqueue a task again and again: by a cron expression, or every so many seconds, minutes, hours or days.

        It stands above `@app.task`. `args` and `kwargs` are the arguments of each call. Workers store the schedule when
        they start.
        """
        times = timing(cron, seconds=seconds, minutes=minutes, hours=hours, days=days, tz=tz, jitter=jitter)

        def declare_schedule(task: object) -> Any:
            if not isinstance(task, Task):
                raise BadInput("@app.every takes a task. Next: put @app.every above @app.task, and not below it")
            if task.app is not self:
                raise BadInput(f"task {task.name} belongs to another App. Next: use the every of that App")
            if isinstance(args, str) or not isinstance(args, Sequence):
                raise BadInput(f"args must be a list or tuple of arguments, not {args!r}")
            own_name = task.name.removeprefix(f"{self.name}.") if name is None else name
            job = task.call(*args, **(kwargs or {})).job
            made = declare(own_name, job, times, missed=missed, overlap=overlap)
            if self._schedules.setdefault(made.name, made) is not made:
                raise BadInput(f"schedule {made.name!r} is already declared. Next: give one of them another name=")
            return task

        return declare_schedule

    @only_known_options("app.schedule")
    async def schedule(
        self, name: str, call: Call[Any], cron: str | None = None, /, *, seconds: int | None = None,
        minutes: int | None = None, hours: int | None = None, days: int | None = None, tz: str = "UTC",
        missed: Missed = "once", overlap: Overlap = "skip", jitter: float = 0.0,
    ) -> StoredSchedule:  # fmt: skip
        """Create a schedule of this application at run time, or change it; `call` is `task.call(…)`.

        Other fire times hold from now on. A schedule that is declared in code is refused.
        """
        if not isinstance(call, Call):
            raise BadInput(f"app.schedule takes task.call(…), not {call!r}")
        times = timing(cron, seconds=seconds, minutes=minutes, hours=hours, days=days, tz=tz, jitter=jitter)
        made = declare(name, _without_context(call), times, missed=missed, overlap=overlap)
        client = await self._client()
        return await client.schedules.put(made, application=self.application, by="{}:{}".format(*host_and_pid()))

    async def unschedule(self, name: str) -> bool:
        """Delete a schedule that was made at run time, with its history; returns whether there was one."""
        return await (await self._client()).schedules.remove(name, application=self.application)

    @property
    def schedules(self) -> AppSchedules:
        """The stored schedules of this application."""
        return AppSchedules(self._client, self.application)


def _without_context(call: Call[Any]) -> Any:
    """The job without the trace and correlation ids of the handler that runs now: later jobs are not part of it."""
    job, running = call.job, current.get()
    if running is None:
        return job
    return replace(
        job,
        trace_id=None if job.trace_id == running.trace_id else job.trace_id,
        correlation_id=None if job.correlation_id == running.correlation_id else job.correlation_id,
    )


def fingerprints(schedules: Mapping[str, Schedule]) -> dict[str, str]:
    """Return what a worker's row says about its schedules."""
    return {name: one.fingerprint for name, one in schedules.items()}


async def declare_as_worker(app: App, client: JobClient, by: str, *, starting: bool = True) -> None:
    """Store the schedules of an application's code; a key that may not do that is reported in the log."""
    if not app._schedules:
        return
    try:
        await client.schedules.declare(
            list(app._schedules.values()), application=app.application, by=by, starting=starting
        )
    except NotPermitted as error:
        if error.reason_code == "AUTH_REQUIRED":
            raise
        if starting:
            _log.warning(
                "this key may not declare the schedules of %s (%s): they do not fire until a worker declares them "
                "whose key has the scope work and is bound to no tenant",
                app.application, ", ".join(app._schedules),
            )  # fmt: skip


async def declare_regularly(app: App, client: JobClient, by: str) -> None:
    """Declare the schedules again once a minute, until cancelled: the release that replaced them may be gone."""
    is_failing = False
    while True:
        await asyncio.sleep(_DECLARE_AGAIN_S)
        try:
            await declare_as_worker(app, client, by, starting=False)
            is_failing = False
        except UNREACHABLE:
            continue
        except Exception as error:
            if not is_failing:
                _log.warning("the schedules of %s could not be declared: %s", app.application, error)
            is_failing = True
