"""The list of jobs, and one job: its attempts, its log, and why it is (not) running."""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from tenure.dashboard.page import Page
from tenure.errors import BadInput
from tenure.jobs.search import JOB_SUGGESTIONS

#: How many entries of a long log a page shows: the first ones.
_MOST_EVENTS = 500
_CLAIMING = ("claim", "reclaim")
#: How a run ended, by the trigger, in words; and whether that is bad. A trigger of a user's contract stands for itself.
_ENDS: Final = {
    "succeed": ("succeeded", False), "retry": ("failed, is tried again", True),
    "exhaust": ("failed, no attempt was left", True), "fatal": ("failed for good", True),
    "expire": ("lease lost", True), "reclaim": ("lease lost, another worker took it", True),
    "expire_at_cap": ("lease lost, no attempt was left", True), "snooze": ("snoozed", False),
    "hand_back": ("handed back", False), "cancel": ("cancelled", False),
}  # fmt: skip
#: What the log notes during a run.
_NOTED: Final = {
    "cancel_requested": "asked to stop", "effect": "effect recorded", "compensating": "effects are undone",
    "checkpoint": "checkpoint saved",
}  # fmt: skip
#: Ages in sentences would make the page another one at every look.
_AGO = re.compile(r" \([^()]* ago\)")


async def job_list(page: Page) -> dict[str, Any]:
    """A page of jobs that match the search; a wrong search shows which word is wrong."""
    q, cursor = page.query.get("q", ""), page.query.get("cursor")
    error, found = None, dict[str, Any](jobs=[], next=None, stopped=False)
    try:
        found = await page.get("/api/v1/jobs", q=q, cursor=cursor, limit=50)
    except BadInput as refused:
        error = str(refused)
    return {**found, "q": q, "cursor": cursor, "error": error, "suggestions": JOB_SUGGESTIONS}


async def job(page: Page) -> dict[str, Any]:
    """One job, with everything that is known about it."""
    path = f"/api/v1/jobs/{page.name}"
    shown = await page.get(path)
    log = await page.get(f"{path}/events", limit=_MOST_EVENTS)
    why = await page.get(f"{path}/why")
    effects = await page.try_get(f"{path}/effects")
    attempts = _attempts(shown, log["events"])
    contract = await page.get(f"/api/v1/contracts/{shown['contract']}")
    return {
        "title": f"Job {shown['id']}", "job": shown, "events": log["events"], "more_events": log["next"],
        "why": [_AGO.sub("", line) for line in why["why"]],
        "effects": None if effects is None else effects["effects"], "attempts": attempts,
        "targets": _targets(contract["declaration"], shown["state"]), "copies": _copies(shown),
        "difference": _difference(attempts),
    }  # fmt: skip


def _attempts(job: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The claims of a job, each with its wait, its run, what happened in it and its end, as the log tells."""
    attempts: list[dict[str, Any]] = []
    since = job["created_at"]
    for event in events:
        if event["hop"] and event["trigger"] in _CLAIMING:
            if attempts and attempts[-1]["ended_at"] is None:  # its lease was taken over
                _end(attempts[-1], event)
            attempts.append({
                "claims": event["claims"], "worker": event["actor"], "waited_since": since, "began_at": event["ts"],
                "ended_at": None, "end": None, "is_bad": False, "reason": None, "error": None, "beats": [], "notes": [],
            })  # fmt: skip
        elif attempts and attempts[-1]["ended_at"] is None:
            if event["hop"] and event["to_state"] != event["from_state"] and event["trigger"] != "start":
                _end(attempts[-1], event)
            elif event["trigger"] == "heartbeat":
                attempts[-1]["beats"].append(event["ts"])
            elif event["trigger"] in _NOTED:
                attempts[-1]["notes"].append({**event, "text": _NOTED[event["trigger"]]})
        if event["hop"]:
            since = event["ts"]
    now = datetime.now(UTC).isoformat()
    last = job["finished_at"] or now
    whole = max(_span(job["created_at"], last), 0.001)
    for one in attempts:
        end = one["ended_at"] or now
        one["wait_s"] = _span(one["waited_since"], one["began_at"])
        one["run_s"] = _span(one["began_at"], end) if one["ended_at"] else None
        # Places on a line of a thousand parts, from when the job was made to its end or to now.
        one["waits_at"], one["runs_at"], one["ends_at"] = (
            _place(at, job["created_at"], whole) for at in (one["waited_since"], one["began_at"], end)
        )
        one["beats_at"] = [_place(at, job["created_at"], whole) for at in one["beats"]]
    return attempts


def _end(attempt: dict[str, Any], event: Mapping[str, Any]) -> None:
    facts = event["facts"] or {}
    text, is_bad = _ENDS.get(event["trigger"], (event["trigger"], False))
    attempt |= {
        "ended_at": event["ts"], "end": text, "is_bad": is_bad, "reason": event["reason"],
        "error": facts.get("error") if isinstance(facts, dict) else None,
    }  # fmt: skip


def _span(begin: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()


def _place(at: str, begin: str, whole: float) -> int:
    return min(1_000, max(0, round(1_000 * _span(begin, at) / whole)))


def _difference(attempts: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines by which the last error differs from the one before it."""
    errors = [_error_lines(one["error"]) for one in attempts if one["error"] is not None]
    if len(errors) < 2:
        return []
    return list(difflib.unified_diff(errors[-2], errors[-1], "before", "last", lineterm=""))


def _error_lines(error: Any) -> list[str]:
    """An error in lines: its fields, then its stack."""
    if not isinstance(error, dict):
        return json.dumps(error, indent=2, ensure_ascii=False).splitlines()
    fields = [
        f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in sorted(error.items()) if name != "stack"
    ]
    return [*fields, *str(error.get("stack") or "").splitlines()]


def _targets(declaration: Mapping[str, Any], state: str) -> list[str]:
    """The states to which a path of the contract leads from here; the API says which of them a person may choose."""
    found = {path["hops"][-1]["state"]: None for path in declaration["paths"] if state in path["sources"]}
    return list(found)


def _copies(job: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The same job as a command: for curl, for the command line, and in Python."""
    payload = json.dumps(job["payload"], ensure_ascii=False)
    body = json.dumps(
        {name: job[name] for name in ("type", "contract", "queue", "tenant_id", "priority", "payload")},
        ensure_ascii=False,
    )
    address = '"$TENURE_DISPATCHER_URL/api/v1/jobs"'
    options = f"--contract {shlex.quote(job['contract'])} --queue {shlex.quote(job['queue'])}"
    options += f" --tenant {shlex.quote(job['tenant_id'])} --priority {job['priority']}"
    given = f"queue={job['queue']!r}, tenant={job['tenant_id']!r}, priority={job['priority']}"
    # The names with $ are the engine's own, and no arguments of the function.
    arguments = job["payload"]
    if isinstance(arguments, Mapping):
        arguments = {name: value for name, value in arguments.items() if not name.startswith("$")}
    return [
        ("curl", f"curl -s {address} -H \"Authorization: Bearer $TENURE_KEY\" "
                 f"-H 'Content-Type: application/json' -d {shlex.quote(body)}"),
        ("Command line", f"tenure enqueue {shlex.quote(job['type'])} --payload {shlex.quote(payload)} {options}"),
        ("Python", f"await app.tasks[{job['type']!r}].options({given}).enqueue(**{arguments!r})"),
    ]  # fmt: skip
