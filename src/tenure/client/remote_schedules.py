"""Schedules through a dispatcher: the same calls as `tenure.postgres.schedules.Schedules`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar
from urllib.parse import quote

from tenure.client.dispatcher_requests import DispatcherRequests, repeat_if_lost
from tenure.errors import ScheduleNotFound
from tenure.jobs import validation
from tenure.schedules.declaration import Schedule, from_json
from tenure.schedules.status import Fire, StoredSchedule

T = TypeVar("T")
_PATH = "/api/v1/schedules"
_TIMES = ("declared_at", "fire_at", "next_at", "paused_at", "withdrawn_at", "now")


class RemoteSchedules:
    """The schedules behind one dispatcher. The dispatcher records the owner of the API key, not an actor."""

    def __init__(self, requests: DispatcherRequests) -> None:
        self._requests = requests

    async def declare(
        self, schedules: Sequence[Schedule], *, application: str, by: str | None = None, starting: bool = True
    ) -> Sequence[str]:
        """Store the schedules of an application's code; returns the names of those that were written."""
        body = {
            "application": application, "declared_by": by, "starting": starting,
            "schedules": [{"name": one.name, **one.to_json()} for one in schedules],
        }  # fmt: skip
        answer = await self._send("PUT", _PATH, body)
        return [str(name) for name in answer["written"]]

    async def put(self, schedule: Schedule, *, application: str, by: str) -> StoredSchedule:
        """Create a schedule at run time, or change it."""
        body = {"application": application, **schedule.to_json()}
        return _stored(await self._send("PUT", _path(schedule.name), body))

    async def remove(self, name: str, *, application: str | None = None) -> bool:
        """Delete a schedule and its history; returns whether there was one."""
        try:
            await self._send("DELETE", _path(name), None, application)
        except ScheduleNotFound:
            return False
        return True

    async def list(self, *, application: str | None = None) -> Sequence[StoredSchedule]:
        """Return the schedules with their last fires."""
        answer = await self._send("GET", _PATH, None, application)
        return [_stored(one) for one in answer["schedules"]]

    async def find(self, name: str, *, application: str | None = None) -> StoredSchedule:
        """Return a schedule."""
        return _stored(await self._send("GET", _path(name), None, application))

    async def fires(self, schedule: StoredSchedule, limit: int = 20) -> Sequence[Fire]:
        """Return the last fires of a schedule, newest first; the dispatcher shows 20 at most."""
        answer = await self._send("GET", _path(schedule.name), None, schedule.application)
        return [_fire(one) for one in answer["fires"]][:limit]

    async def pause(
        self, name: str, *, actor: str, reason: str | None = None, application: str | None = None
    ) -> StoredSchedule:
        """Stop firing a schedule until it is resumed."""
        return _stored(await self._send("POST", f"{_path(name)}/pause", {"application": application, "reason": reason}))

    async def resume(self, name: str, *, application: str | None = None) -> tuple[StoredSchedule, bool]:
        """Fire a paused schedule again; returns it, and whether it was paused."""
        answer = await self._send("POST", f"{_path(name)}/resume", {"application": application})
        return _stored(answer["schedule"]), bool(answer["changed"])

    async def run_now(self, name: str, *, application: str, actor: str) -> Fire:
        """Make a job of a schedule at once. A call whose answer was lost is not repeated: it may have made the job."""
        body = validation.to_json("schedule", {"application": application})
        return await self._requests.send("POST", f"{_path(name)}/run", body, _fire, traced=True)

    async def _send(
        self, method: Literal["GET", "POST", "PUT", "DELETE"], path: str, body: Mapping[str, Any] | None,
        application: str | None = None,
    ) -> Any:  # fmt: skip
        """Send a request that may be repeated where its answer was lost."""
        text = None if body is None else validation.to_json("schedule", dict(body), 4 * validation.MAX_BYTES)
        params = {} if application is None else {"application": application}
        return await repeat_if_lost(lambda: self._requests.send(method, path, text, params=params, traced=True))


def _path(name: str) -> str:
    return f"{_PATH}/{quote(validation.check_name('schedule', name), safe='')}"


def _stored(answer: Mapping[str, Any]) -> StoredSchedule:
    """A schedule of an answer."""
    at = {name: _time(answer[name]) for name in _TIMES}
    now, declared_at = at["now"], at["declared_at"]
    assert now is not None
    assert declared_at is not None
    return StoredSchedule(
        int(answer["id"]), answer["application"], answer["tenant_id"], answer["in_code"],
        from_json(answer["name"], answer), answer["declared_by"], declared_at, at["fire_at"], at["next_at"],
        at["paused_at"], answer["paused_by"], answer["pause_reason"], at["withdrawn_at"], now,
        None if answer["last_fire"] is None else _fire(answer["last_fire"]),
    )  # fmt: skip


def _fire(answer: Mapping[str, Any]) -> Fire:
    job_id = answer["job_id"]
    fire_at, last_at, at = (datetime.fromisoformat(answer[name]) for name in ("fire_at", "last_at", "at"))
    return Fire(
        fire_at, last_at, at, answer["times"], None if job_id is None else int(job_id), answer["by_hand"],
        answer["result"], answer["reason"],
    )  # fmt: skip


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
