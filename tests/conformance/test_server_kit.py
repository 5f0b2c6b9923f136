"""The conformance kit for servers: ours passes, and each planted bug is found and named."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from tenure.conformance.check_server import CHECKS, check_server
from tenure.conformance.fault_proxy import Answer, FaultProxy, Request
from tenure.errors import BadInput
from tests.conformance.workers import ROOT
from tests.http.conftest import new_key
from tests.http.processes import dispatching

Alter = Callable[[Request, int, dict[str, Any]], tuple[int, dict[str, Any]]]


class BrokenServer(FaultProxy):
    """A dispatcher behind a proxy that alters requests and answers: a server with a bug."""

    def __init__(self, upstream: str, before: Callable[[str, dict[str, Any]], None], after: Alter) -> None:
        super().__init__(upstream)
        self._before, self._after = before, after

    async def _forward(self, request: Request) -> Answer | None:
        body = json.loads(request.content or b"{}")
        self._before(request.target, body)
        answer = await super()._forward(request._replace(content=json.dumps(body).encode()))
        if answer is None:
            return None
        status, altered = self._after(request, answer[0], json.loads(answer[1]))
        return status, json.dumps(altered).encode()


def as_sent(target: str, body: dict[str, Any]) -> None:
    """Alter nothing."""


def as_answered(request: Request, status: int, answer: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return status, answer


def accept_late_calls(request: Request, status: int, answer: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    if answer.get("error", {}).get("code") == "LEASE_CONFLICT":
        return 200, {"id": "1", "moved": True, "role": "done"}
    return status, answer


def forget_cancels(request: Request, status: int, answer: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return status, {**answer, "cancel_requested": False} if "cancel_requested" in answer else answer


def ignore_keys(target: str, body: dict[str, Any]) -> None:
    body.pop("idempotency_key", None)


def ignore_types(target: str, body: dict[str, Any]) -> None:
    if target == "/api/v1/claims":
        body.pop("types", None)


#: A planted bug: what becomes of requests and answers, the check that meets it, and what the kit says.
PLANTED: dict[str, tuple[Callable[[str, dict[str, Any]], None], Alter, str, str]] = {
    "accepts late completions": (
        as_sent, accept_late_calls, "lost-lease", "it accepted a completion after the lease was lost"
    ),
    "has no fence": (as_sent, accept_late_calls, "fence", "it accepted heartbeat with a wrong lease_token"),
    "has no fence for tasks": (as_sent, accept_late_calls, "task-completion", "it accepted a call with a wrong"),
    "forgets cancels": (as_sent, forget_cancels, "cancels", "a heartbeat does not say cancel_requested"),
    "ignores idempotency keys": (ignore_keys, as_answered, "enqueue", "the same idempotency_key made two jobs"),
    "ignores types": (ignore_types, as_answered, "claims", "won a job of a type that it did not name"),
}  # fmt: skip


def test_our_server_passes_with_a_key_and_leaves_no_job_behind(dsn: str) -> None:
    key = new_key(dsn, "kit", "enqueue", "work", "operate")
    command = [sys.executable, "-m", "tenure", "conformance", "--key", key, "--timeout", "60", "--json"]
    with dispatching(dsn) as (_, url):
        done = subprocess.run([*command, url], cwd=ROOT, capture_output=True, text=True)
        found = json.loads(done.stdout)
        faults = {result["name"]: result["faults"] for result in found["results"] if not result["passed"]}
        assert (done.returncode, faults) == (0, {}), done.stderr
        assert [result["name"] for result in found["results"]] == list(CHECKS)
        headers = {"Authorization": f"Bearer {key}"}
        listed = httpx2.get(f"{url}/api/v1/jobs", headers=headers, params={"limit": 1_000}).json()["jobs"]
        assert len(listed) > 10
        assert {job["role"] for job in listed} == {"done"}


@pytest.mark.parametrize("name", PLANTED)
async def test_a_server_with_a_planted_bug_is_named_for_it(dsn: str, name: str) -> None:
    before, after, check, fault = PLANTED[name]
    with dispatching(dsn) as (_, url):
        server = BrokenServer(url, before, after)
        await server.open()
        try:
            (result,) = await check_server(server.url, None, [check], timeout_s=60)
        finally:
            await server.end()
    assert fault in "\n".join(result.faults)


async def test_a_server_that_cannot_be_reached_fails_every_check() -> None:
    results = await check_server("http://127.0.0.1:9", None, ["enqueue", "fence"])
    assert [result.passed for result in results] == [False, False]
    assert "no answer" in results[0].faults[0]


def test_a_key_without_the_scopes_is_named(dsn: str) -> None:
    key = new_key(dsn, "kit", "enqueue")
    with dispatching(dsn) as (_, url):
        (result,) = asyncio.run(check_server(url, key, ["heartbeat"]))
    assert "the key may not POST /api/v1/claims" in result.faults[0]


def test_a_wrong_call_of_the_command_is_refused() -> None:
    for arguments in ([], ["http://127.0.0.1:9", "--worker", "true"]):
        command = [sys.executable, "-m", "tenure", "conformance", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert (done.returncode, done.stderr.split(":")[0]) == (1, "E-BAD-INPUT")


async def test_an_unknown_check_is_refused() -> None:
    with pytest.raises(BadInput, match="there is no check 'fences'"):
        await check_server("http://127.0.0.1:9", None, ["fences"])
