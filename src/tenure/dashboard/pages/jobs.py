"""The list of jobs, and one job: its attempts, its log, and why it is (not) running."""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from tenure.dashboard.page import Page
from tenure.errors import BadInput
from tenure.jobs.search import JOB_SUGGESTIONS

#: How many entries of a long log a page shows: the first ones.
_MOST_EVENTS = 500
_CLAIMING = ("claim", "reclaim")
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
    """The claims of a job, each with its wait, its run and its end, as the log tells."""
    attempts: list[dict[str, Any]] = []
    since = job["created_at"]
    for event in events:
        if event["hop"] and event["trigger"] in _CLAIMING:
            if attempts and attempts[-1]["ended_at"] is None:  # its lease was taken over
                _end(attempts[-1], event)
            attempts.append({
                "claims": event["claims"], "worker": event["actor"], "waited_since": since, "began_at": event["ts"],
                "ended_at": None, "end": None, "reason": None, "error": None, "beats": 0,
            })  # fmt: skip
        elif attempts and attempts[-1]["ended_at"] is None:
            if event["hop"] and event["to_state"] != event["from_state"] and event["trigger"] != "start":
                _end(attempts[-1], event)
            elif event["trigger"] in ("heartbeat", "renew"):
                attempts[-1]["beats"] += 1
        if event["hop"]:
            since = event["ts"]
    longest = max((_span(one["waited_since"], one["ended_at"]) for one in attempts), default=0.0)
    for one in attempts:
        one["wait_s"] = _span(one["waited_since"], one["began_at"])
        one["run_s"] = _span(one["began_at"], one["ended_at"]) if one["ended_at"] else None
        one["wait_share"] = _share(one["wait_s"], longest)
        one["run_share"] = _share(one["run_s"] or 0.0, longest)
    return attempts


def _end(attempt: dict[str, Any], event: Mapping[str, Any]) -> None:
    facts = event["facts"] or {}
    attempt |= {
        "ended_at": event["ts"], "end": event["trigger"], "reason": event["reason"],
        "error": facts.get("error") if isinstance(facts, dict) else None,
    }  # fmt: skip


def _span(begin: str, end: str | None) -> float:
    if end is None:
        return 0.0
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()


def _share(seconds: float, longest: float) -> int:
    """A part of the longest attempt, in twentieths: the style sheet has a width for each."""
    return 0 if longest <= 0 else min(20, max(1, round(20 * seconds / longest))) if seconds > 0 else 0


def _difference(attempts: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines by which the last error differs from the one before it."""
    errors = [json.dumps(one["error"], indent=2, ensure_ascii=False) for one in attempts if one["error"] is not None]
    if len(errors) < 2:
        return []
    return list(difflib.unified_diff(errors[-2].splitlines(), errors[-1].splitlines(), "before", "last", lineterm=""))


def _targets(declaration: Mapping[str, Any], state: str) -> list[str]:
    """The states to which a path of the contract leads from here; the API says which of them a person may choose."""
    found = {path["hops"][-1]["state"]: None for path in declaration["paths"] if state in path["sources"]}
    return list(found)


def _copies(job: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The same job as a command: for curl, for the command line, and in Python."""
    payload = json.dumps(job["payload"], ensure_ascii=False)
    body = json.dumps(
        {"type": job["type"], "contract": job["contract"], "queue": job["queue"], "payload": job["payload"]},
        ensure_ascii=False,
    )
    address = '"$TENURE_DISPATCHER_URL/api/v1/jobs"'
    options = f"--contract {shlex.quote(job['contract'])} --queue {shlex.quote(job['queue'])}"
    return [
        ("curl", f"curl -s {address} -H \"Authorization: Bearer $TENURE_KEY\" "
                 f"-H 'Content-Type: application/json' -d {shlex.quote(body)}"),
        ("Command line", f"tenure enqueue {shlex.quote(job['type'])} --payload {shlex.quote(payload)} {options}"),
        ("Python", f"await app.tasks[{job['type']!r}].enqueue(**{job['payload']!r})"),
    ]  # fmt: skip
