"""Both JSON writers write the same values, with times in the same form."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest

from tenure.contracts import BUILT_IN
from tenure.http import response
from tenure.http.response import FastJsonResponse, JsonResponse
from tenure.jobs.job import Job
from tenure.jobs.outcome import Moved, Noted

WHOLE = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
PART = WHOLE.replace(microsecond=120)
ELSEWHERE = PART.astimezone(ZoneInfo("Europe/Berlin"))
EXPECTED = {WHOLE: "2026-11-15T12:00:00.000000Z", PART: "2026-11-15T12:00:00.000120Z"}


def _job(at: datetime, **fields: Any) -> Job:
    return Job(
        7, "standard", "1", "running", "active", "default", "touch", "default", 5, 1, 0, 1, 5, '{"n": [1.5, "é☃"]}',
        "w1", at, at, at, at, at, None, None, None, None, None, None, None, None, None, None, None, uuid4(), "here",
    )._replace(**fields)  # fmt: skip


@pytest.mark.parametrize("at", [WHOLE, PART, ELSEWHERE])
def test_a_claim_a_move_and_a_note_are_written_alike(at: datetime) -> None:
    said = [
        response.claim(_job(at), BUILT_IN["standard"]),
        response.outcome(_job(at)),
        response.outcome(Moved(7, "retry", "running", "queued", "ready", 1, 1, at, at, 1_000)),
        response.outcome(Noted(7, at, cancel_requested=False, renewed=True)),
        response.outcome(None, 7),
    ]
    written = [json.loads(bytes(response(said).body)) for response in (FastJsonResponse, JsonResponse)]
    assert written[0] == written[1]
    claim, taken, moved, noted, _ = written[0]
    times = [claim["job"][name] for name in ("lease_expires_at", "due_at", "created_at", "updated_at", "started_at")]
    times += [claim["lease_expires_at"], taken["at"], moved["at"], moved["due_at"], noted["lease_expires_at"]]
    assert set(times) == {EXPECTED[at.astimezone(UTC)]}


def test_what_cannot_be_written_quickly_is_written_all_the_same() -> None:
    said = {"error": "no \ud800 text", "at": PART}
    assert FastJsonResponse(said).body == JsonResponse(said).body
