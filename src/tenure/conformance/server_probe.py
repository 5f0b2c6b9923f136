"""A client for checks of a server: every call says which answer it expects; every job is ended afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import httpx2

from tenure.conformance.result import Fault

TYPE: Final = "conformance"
#: The shortest lease that the contracts `standard` and `dispatcher` allow, in seconds.
LEASE_S: Final = 2
_POLL_S: Final = 0.1
_ERROR_FIELDS: Final = {"code": str, "message": str, "retryable": bool}


class Check(NamedTuple):
    """A check: its name, what it is about, and the function that makes it."""

    name: str
    about: str
    make: Callable[[Probe], Awaitable[None]]


class Probe:
    """The calls of one check, in a queue of its own."""

    def __init__(self, client: httpx2.AsyncClient, timeout_s: float) -> None:
        self.queue = f"conformance-{uuid.uuid4().hex[:12]}"
        self.timeout_s = timeout_s
        self._client = client
        self._made: list[str] = []
        self._workers = {"kit-1", "kit-2"}

    async def send(self, method: str, path: str, body: Any = None, **headers: str) -> httpx2.Response:
        """The answer, whatever it is; a Fault for a 5xx or something that is no JSON."""
        response = await self._client.request(method, path, json=body, headers=headers)
        if response.status_code >= 500:
            raise Fault(f"{method} {path} was answered {response.status_code}: {response.text[:300]}")
        if not isinstance(_json(response), dict):
            raise Fault(f"the answer to {method} {path} is no JSON object: {response.text[:300]}")
        return response

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> dict[str, Any]:
        """The body of an answer that must be 200 or 201."""
        response = await self.send(method, path, body, **headers)
        found: dict[str, Any] = response.json()
        if response.status_code in (401, 403):
            raise Fault(f"the key may not {method} {path}: {response.text[:300]}. It needs enqueue, work and operate")
        if response.status_code not in (200, 201):
            raise Fault(f"{method} {path} was answered {response.status_code}, and not 200: {response.text[:300]}")
        return found

    async def refused(self, path: str, body: Any, status: int, *codes: str, what: str) -> None:
        """A POST that must be refused so, with the error envelope; `what` is what the server did if it accepts it."""
        response = await self.send("POST", path, body)
        if response.status_code in (200, 201):
            raise Fault(f"{what}: POST {path} was answered {response.status_code}, and not {status}")
        error = response.json().get("error")
        if response.status_code != status or not isinstance(error, dict) or (codes and error.get("code") not in codes):
            wanted = " or ".join(codes)
            raise Fault(f"POST {path} was answered {response.status_code} {response.text[:300]}, not {status} {wanted}")
        for name, kind in _ERROR_FIELDS.items():
            if not isinstance(error.get(name), kind):
                raise Fault(f"the error of POST {path} has no field {name}: {error}")

    async def enqueue(self, **fields: Any) -> str:
        """Make a job; its id."""
        job = {"type": TYPE, "queue": self.queue, "payload": {}, **fields}
        job_id = (await self.call("POST", "/api/v1/jobs", job))["id"]
        self._made.append(job_id)
        return str(job_id)

    async def claim(self, worker: str = "kit-1", **fields: Any) -> list[dict[str, Any]]:
        """Claim jobs of the check's queue, under the shortest lease; what was won."""
        contract = fields.get("contract", "standard")
        self._workers.add(worker)
        options = [{"type": TYPE, "contract": contract, "lease_ttl_sec": LEASE_S}]
        request = {"worker_id": worker, "queues": [self.queue], "types": [TYPE], "options": options, **fields}
        found: list[dict[str, Any]] = (await self.call("POST", "/api/v1/claims", request))["claims"]
        return found

    async def claim_one(self, worker: str = "kit-1", **fields: Any) -> dict[str, Any]:
        """Claim the only job; waits for it."""
        found = await self.claim(worker, wait_seconds=min(self.timeout_s, 60), **fields)
        if len(found) != 1:
            raise Fault(f"a claim of a queue with one due job won {len(found)} jobs")
        return found[0]

    async def show(self, job_id: str) -> dict[str, Any]:
        """The job."""
        return await self.call("GET", f"/api/v1/jobs/{job_id}")

    async def until(self, condition: Callable[[], Awaitable[Any]], fault: str) -> Any:
        """Wait until the condition is true; a Fault after the time limit."""
        give_up = time.monotonic() + self.timeout_s
        while not (found := await condition()):
            if time.monotonic() > give_up:
                raise Fault(f"{fault} within {self.timeout_s:g} s")
            await asyncio.sleep(_POLL_S)
        return found

    async def clean_up(self) -> None:
        """End the check's jobs, discard their dead letters where the key may, and take its workers off the list."""
        for worker in self._workers:
            with contextlib.suppress(Fault, httpx2.HTTPError):
                await self.send("POST", "/api/v1/workers/leave", {"worker_id": worker})
        for job_id in self._made:
            with contextlib.suppress(Fault, httpx2.HTTPError):
                await self.send("POST", f"/api/v1/jobs/{job_id}/cancel", {"mode": "hard", "reason": "conformance"})
                letter = (await self.show(job_id)).get("dlq_id")
                if letter is not None:
                    reason = {"reason": "made by tenure conformance"}
                    await self.send("POST", f"/api/v1/dlq/items/{letter}/discard", reason)


def require(is_right: Any, fault: str) -> None:
    """End the check with a Fault unless the value is true."""
    if not is_right:
        raise Fault(fault)


def path_of(claim: dict[str, Any], verb: str) -> str:
    """The route of a holder's verb for a claimed job."""
    return f"/api/v1/jobs/{claim['job']['id']}/{verb}"


def proof(claim: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """The body of a holder's call."""
    return {"claims": claim["claims"], "lease_token": claim["lease_token"], **facts}


def _json(response: httpx2.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None
