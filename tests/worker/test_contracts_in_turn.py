"""Contracts that share a worker: none of them starves the others, however steadily its jobs come."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from tenure.app import App
from tenure.client.direct import DirectClient
from tests.worker.working import until, working


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_a_trickle_of_one_contract_does_not_starve_another(
    app: App, monkeypatch: pytest.MonkeyPatch, concurrency: int
) -> None:
    ended: list[int] = []
    trickled: list[int] = []
    turns: list[str] = []
    won, is_heard = 0, False
    claim = DirectClient.claim

    async def noted(self: DirectClient, contract: str, *args: Any, **options: Any) -> Any:
        """Claim; whose turn it was counts while the worker knows of the others, and has not won them all."""
        nonlocal won
        if is_heard and won < 20:
            turns.append(contract)
        jobs = await claim(self, contract, *args, **options)
        won += len(jobs) if contract == "simple" else 0
        return jobs

    monkeypatch.setattr(DirectClient, "claim", noted)

    @app.task(contract="standard")
    async def trickle() -> None:
        trickled.append(len(ended))
        if len(ended) < 20:
            await trickle.enqueue()
            running.wake_up("standard", "default")  # the wake-up is there before the next claim
            await asyncio.sleep(0.01)

    @app.task(contract="simple")
    async def other(n: int) -> None:
        ended.append(n)

    async with working(app, concurrency=concurrency, upkeep=False) as running:
        for _ in range(2 * concurrency):
            await trickle.enqueue()
        await until(lambda: len(trickled) > 5)
        await app.enqueue_many(other.call(n) for n in range(20))
        running.wake_up("simple", "default")
        is_heard = True
        await until(lambda: len(ended) == 20)
    in_a_row = [len(list(claims)) for contract, claims in itertools.groupby(turns) if contract == "standard"]
    # The first may be under way, or be asked for in the turn in which the wake-up comes.
    assert max(in_a_row, default=0) <= 2, f"each contract has its turn: {turns}"
