"""The load generator of `./dev bench http`, a separate process: reads commands on stdin, answers on stdout.

    TENURE_BENCH_KEY=… python -m bench.http_load.load URL

Each line is the name of a load and its numbers; the answer is the same name and the result as JSON. Connections are
opened before the clock starts.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

from bench.http_load.client import Client, Unexpected

_QUEUE = "bench"
#: The contract of document 001, and its tasks by id in the order in which they were made.
TASKS = "dispatcher"
_tasks: list[str] = []
#: So often a claim may come back empty while jobs are left: others had locked those that it looked at.
_EMPTY = 1_000
_PAUSE_S = 0.02
_WARM_UP = 10


def compact(value: Any) -> bytes:
    """JSON without blanks."""
    return json.dumps(value, separators=(",", ":")).encode()


def _claim(limit: int, wait_s: float = 0) -> bytes:
    request = {"queues": [_QUEUE], "worker_id": "bench", "limit": limit, "record": False, "wait_seconds": wait_s}
    return compact(request)


class Load:
    """Clients that work at the same time, and how long their calls took."""

    def __init__(self, url: str, key: str) -> None:
        self._address = (url, key)

    async def run(self, clients: int, work: Callable[[Client], Awaitable[None]]) -> dict[str, Any]:
        """So many clients do this until they are through; the seconds of all, and of each call."""
        connected = [await Client.connect(*self._address) for _ in range(clients)]
        begun = time.perf_counter()
        try:
            await asyncio.gather(*(work(client) for client in connected))
            seconds = time.perf_counter() - begun
        finally:
            for client in connected:
                client.close()
        spent: dict[str, list[float]] = {}
        for client in connected:
            for name, calls in client.spent.items():
                spent.setdefault(name, []).extend(calls)
        return {"seconds": seconds, "calls": {name: _spread(calls) for name, calls in spent.items()}}

    async def enqueue(self, jobs: int, clients: int, batch: int, contract: str) -> dict[str, Any]:
        """Make jobs in batches."""
        firsts = iter(range(0, jobs, batch))

        async def make(client: Client) -> None:
            for first in firsts:
                new = [
                    {"type": "touch", "payload": {"n": n}, "queue": _QUEUE, "contract": contract}
                    for n in range(first, min(first + batch, jobs))
                ]
                made = (await client.post("enqueue", "/api/v1/jobs/batch", compact({"jobs": new})))["jobs"]
                if contract == TASKS:
                    _tasks.extend(one["id"] for one in made)

        return await self.run(clients, make)

    async def single(self, jobs: int, clients: int) -> dict[str, Any]:
        """Claim one job, end it well, claim the next."""
        turns, request = iter(range(jobs)), _claim(1)

        async def work(client: Client) -> None:
            for _ in turns:
                (won,) = await _won(client, request)
                proof = compact({"claims": won["claims"], "lease_token": won["lease_token"]})
                await client.post("finish", f"/api/v1/jobs/{won['job']['id']}/succeed", proof)

        return await self.run(clients, work)

    async def tasks(self, jobs: int, clients: int) -> dict[str, Any]:
        """Document 001: claim a task by its id, complete it."""
        ids = iter([_tasks.pop() for _ in range(jobs)])

        async def work(client: Client) -> None:
            for task_id in ids:
                request = compact({"task_id": task_id, "worker_id": "bench"})
                got = await client.post("claim", "/internal/task-claim", request)
                if got["status"] != "Claimed":
                    raise Unexpected(f"task {task_id} was {got}")
                proof = {"attempt": got["attempt"], "lease_token": got["lease_token"], "status": "Completed"}
                await client.post("finish", "/internal/task-complete", compact({"task_id": task_id, **proof}))

        return await self.run(clients, work)

    async def batches(self, jobs: int, clients: int, batch: int) -> dict[str, Any]:
        """Claim many jobs at once, end them well together."""
        left, request = jobs, _claim(batch)

        async def work(client: Client) -> None:
            nonlocal left
            while left > 0:
                won = (await client.post("claim", "/api/v1/claims", request))["claims"]
                left -= len(won)
                finishes = [
                    {"id": one["job"]["id"], "claims": one["claims"], "lease_token": one["lease_token"],
                     "verb": "succeed"}
                    for one in won
                ]  # fmt: skip
                if finishes:
                    body = compact({"finishes": finishes})
                    became = (await client.post("finish", "/api/v1/finishes", body))["answers"]
                    if not all(one.get("moved") for one in became):
                        raise Unexpected(f"a finish was {next(one for one in became if not one.get('moved'))}")

        return await self.run(clients, work)

    async def idle(self, jobs: int) -> dict[str, Any]:
        """One client waits for a job, another makes one: from the call that makes it to the job in hand."""
        url, key = self._address
        waiting, request = await Client.connect(url, key), _claim(1, wait_s=30)
        new = compact({"type": "touch", "payload": {"n": 1}, "queue": _QUEUE})
        found: list[float] = []

        async def in_hand() -> float:
            (won,) = (await waiting.post("wait", "/api/v1/claims", request))["claims"]
            at = time.perf_counter()
            proof = compact({"claims": won["claims"], "lease_token": won["lease_token"]})
            await waiting.post("finish", f"/api/v1/jobs/{won['job']['id']}/succeed", proof)
            return at

        async def make(client: Client) -> None:
            for n in range(_WARM_UP + jobs):
                job = asyncio.create_task(in_hand())
                await asyncio.sleep(_PAUSE_S)
                begun = time.perf_counter()
                await client.post("enqueue", "/api/v1/jobs", new)
                if (at := await job) and n >= _WARM_UP:
                    found.append(at - begun)

        done = await self.run(1, make)
        waiting.close()
        return {"seconds": done["seconds"], "calls": {"wait": _spread(found)}}


async def _won(client: Client, request: bytes) -> list[Any]:
    for _ in range(_EMPTY):
        if won := (await client.post("claim", "/api/v1/claims", request))["claims"]:
            return list(won)
    raise Unexpected(f"{_EMPTY} claims came back empty, and jobs are left")


def _spread(seconds: list[float]) -> list[float]:
    """How many calls, and the half and the 99th part of them, in milliseconds."""
    ranked = sorted(seconds)
    return [len(ranked), *(1_000 * ranked[min(len(ranked) - 1, int(len(ranked) * part))] for part in (0.5, 0.99))]


def main(url: str, key: str) -> None:
    """Do what each line says, until there is none."""
    load = Load(url, key)
    print("ready", flush=True)
    for line in sys.stdin:
        name, *texts = line.split()
        numbers = [int(word) if word.isdecimal() else word for word in texts]
        found = uvloop.run(getattr(load, name)(*numbers))
        print(name, compact(found).decode(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], os.environ["TENURE_BENCH_KEY"])
