"""Messages for invalid requests: where the error is, what must be there, and what to do next."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from tenure.http import validation_messages
from tenure.http.routes.jobs import Enqueue

TOKEN = "0b0e7f0a-5f0e-4f57-9d0c-3f3f6f1a2b4c"
PROOF: dict[str, Any] = {"claims": 1, "lease_token": TOKEN}
JOBS, CLAIMS, FINISHES, SUCCEED = "/api/v1/jobs", "/api/v1/claims", "/api/v1/finishes", "/api/v1/jobs/1/succeed"
CANCEL, TRANSITION = "/api/v1/jobs/1/cancel", "/api/v1/jobs/1/transition"
CASES: list[tuple[str, str, Any, str, str | None]] = [
    ("a misspelt field", JOBS, {"type": "t", "paylod": 1}, "there is no field paylod", "did you mean payload?"),
    (
        "a field like no other", TRANSITION, {"to": "done", "zzz": 1},
        "there is no field zzz", "the fields are to, reason, idempotency_key",
    ),
    (
        "a misspelt field of one of many", "/api/v1/jobs/batch", {"jobs": [{"type": "t"}, {"type": "t", "que": 1}]},
        "there is no field que in jobs.1", "did you mean queue?",
    ),
    ("a missing field", JOBS, {}, "type is missing", "give type, a text of 1 to 200 characters"),
    (
        "two missing fields", SUCCEED, {}, "claims is missing; lease_token is missing",
        "give claims, a whole number from 0 to 2147483647; give lease_token, a UUID",
    ),
    ("a token", SUCCEED, {**PROOF, "lease_token": "none"}, "lease_token must be a UUID", None),
    ("a token that is no text", SUCCEED, {**PROOF, "lease_token": 7}, "lease_token must be a UUID, not 7", None),
    (
        "a claim key", CLAIMS, {"worker_id": "w", "claim_key": "00000000-0000-1000-8000-000000000000"},
        "claim_key must be a UUID of version 4", None,
    ),
    (
        "an id", FINISHES, {"finishes": [{**PROOF, "id": "x", "verb": "succeed"}]},
        "finishes.0.id must be a text of 1 to 19 digits", None,
    ),
    (
        "a number that is none", JOBS, {"type": "t", "delay_seconds": "5"},
        "delay_seconds must be a number from 0 to 316224000, not a text", None,
    ),
    (
        "a number below", JOBS, {"type": "t", "delay_seconds": -1},
        "delay_seconds must be a number from 0 to 316224000, not -1", None,
    ),
    (
        "a number beyond", JOBS, {"type": "t", "priority": 10},
        "priority must be a whole number from 0 to 9, not 10", None,
    ),
    ("a fraction", JOBS, {"type": "t", "priority": 0.5}, "priority must be a whole number from 0 to 9, not 0.5", None),
    (
        "a number without end", JOBS, {"type": "t", "priority": 10**400},
        f"priority must be a whole number from 0 to 9, not 1{'0' * 59}…", None,
    ),
    (
        "true for a number", JOBS, {"type": "t", "priority": True},
        "priority must be a whole number from 0 to 9, not true", None,
    ),
    ("null for a text", JOBS, {"type": None}, "type must be a text of 1 to 200 characters, not null", None),
    ("a list for a text", JOBS, {"type": ["t"]}, "type must be a text of 1 to 200 characters, not a list", None),
    ("an empty text", JOBS, {"type": ""}, "type must be a text of 1 to 200 characters, and has 0", None),
    ("a long text", JOBS, {"type": "t" * 201}, "type must be a text of 1 to 200 characters, and has 201", None),
    (
        "a word that is none of some", CANCEL, {"mode": "gentle"}, "mode must be one of soft, hard, not gentle", None,
    ),
    (
        "a number for one of some words", CANCEL, {"mode": 7}, "mode must be one of soft, hard, not 7", None,
    ),
    (
        "too few items", CLAIMS, {"worker_id": "w", "queues": []},
        "queues must be a list of 1 to 100 items, and has 0", None,
    ),
    (
        "too many items", CLAIMS, {"worker_id": "w", "queues": ["q"] * 101},
        "queues must be a list of 1 to 100 items, and has 101", None,
    ),
    (
        "an object for a list", CLAIMS, {"worker_id": "w", "queues": {}},
        "queues must be a list of 1 to 100 items, not an object", None,
    ),
    (
        "a text for yes or no", CLAIMS, {"worker_id": "w", "record": "yes"},
        "record must be true or false, not a text", None,
    ),
    (
        "a text for an object", "/api/v1/jobs/1/fail", {**PROOF, "error": "broken"},
        "error must be an object, not a text", None,
    ),
    ("a list as the body", JOBS, [], "the body must be an object, not a list", 'send {"type": …}'),
    (
        "a list as a body that may be absent", CANCEL, [],
        "the body must be an object, not a list", "send {}",
    ),
    (
        "two answers to when", JOBS, {"type": "t", "run_at": "2026-11-15T12:00:00Z", "delay_seconds": 5},
        "run_at and delay_seconds both say when the job may be claimed", "give one of them",
    ),
    (
        "more than five", "/api/v1/jobs/batch", {"jobs": [{} for _ in range(1_000)]},
        "; ".join([*(f"jobs.{n}.type is missing" for n in range(5)), "there is more"]),
        "; ".join(f"give jobs.{n}.type, a text of 1 to 200 characters" for n in range(5)),
    ),
]  # fmt: skip


def test_each_kind_of_fault_is_told_in_a_sentence(client: httpx2.Client) -> None:
    for what, path, body, message, hint in CASES:
        answer = client.post(path, json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (422, "E-BAD-INPUT"), (what, answer.text)
        assert (error["message"], error["hint"]) == (message, hint), what


@pytest.mark.parametrize(
    ("path", "outline"),
    [
        (JOBS, '{"type": …}'),
        (SUCCEED, '{"claims": …, "lease_token": …}'),
        (TRANSITION, '{"to": …}'),
    ],
)
def test_an_empty_body_is_said_to_be_empty(client: httpx2.Client, path: str, outline: str) -> None:
    error = client.post(path).json()["error"]
    assert (error["message"], error["hint"]) == ("the body is empty", f"send {outline}")
    null = client.post(path, content=b"null", headers={"Content-Type": "application/json"}).json()["error"]
    assert (null["message"], null["hint"]) == ("the body must be an object, not null", f"send {outline}")


def test_what_is_wrong_in_an_address_is_told_in_the_same_way(client: httpx2.Client) -> None:
    for path, message in (
        ("/api/v1/jobs/abc", "job_id must be a text of 1 to 19 digits, not abc"),
        ("/api/v1/jobs?limit=0", "limit must be a whole number from 1 to 1000, not 0"),
        ("/api/v1/jobs?limit=many", "limit must be a whole number from 1 to 1000, not many"),
        ("/api/v1/jobs?limit=1.5", "limit must be a whole number from 1 to 1000, not 1.5"),
        ("/api/v1/jobs?cursor=x", "cursor must be like live-41 or finished-41, not x"),
        ("/api/v1/wakeups?wait_seconds=nan", "wait_seconds must be a number from 0 to 60, not nan"),
        ("/api/v1/wakeups?wait_seconds=soon", "wait_seconds must be a number from 0 to 60, not soon"),
        ("/api/v1/dlq/items?status=lost", "status must be one of open, requeued, discarded, not lost"),
        ("/api/v1/dlq/items?contract=" + "x" * 41, "contract must be a text of at most 40 characters, and has 41"),
    ):
        assert client.get(path).json()["error"]["message"] == message
    run = client.post("/api/v1/internal/jobs/1/run?force_fail=perhaps").json()["error"]
    assert run["message"] == "force_fail must be true or false, not perhaps"


def test_a_flood_and_odd_names_are_told_in_few_words(client: httpx2.Client) -> None:
    flood = client.post(JOBS, json={f"x{n}": 0 for n in range(10_000)})
    assert flood.json()["error"]["message"] == "10000 fields are given, and there are 20"
    assert flood.json()["error"]["hint"].startswith("the fields are type, payload, contract, ")
    within = client.post("/api/v1/jobs/1/fail", json={**PROOF, "error": {f"x{n}": 0 for n in range(99)}})
    assert within.json()["error"]["message"] == "in error 99 fields are given, and there are 7"
    headers = {"Content-Type": "application/json"}
    for name in ("x" * 100_000, "\\ud800", "\\u0000", " ", "", "\\n Next: pay"):
        odd = client.post(JOBS, content=f'{{"type": "t", "{name}": 1}}', headers=headers)
        assert odd.status_code == 422, odd.text
        assert len(odd.content) < 1_000
    odd = client.post(JOBS, content='{"type": "\\ud800"}', headers=headers)
    assert odd.json()["error"]["message"] == "type contains a lone surrogate, which is not text"
    for value in ("x" * 100_000, "\\ud800", "\\u001b[31m"):
        odd = client.post(CANCEL, content=f'{{"mode": "{value}"}}', headers=headers)
        assert odd.status_code == 422, odd.text
        assert len(odd.content) < 1_000


def test_what_nobody_has_thought_of_is_told_in_the_librarys_words() -> None:
    day = PydanticCustomError("of_another_day", "it\x00is odd")
    error = ValidationError.from_exception_data("Enqueue", [{"type": day, "loc": ("type",), "input": 1}])
    told = validation_messages.bad_input(validation_messages.faults(error, Enqueue, in_body=True))
    assert str(told) == "type: it is odd"
