"""Calls that are made at the same time become one batch; each caller gets its own answer, and none is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tenure.coalesce import Coalescer
from tenure.errors import BadInput, JobNotFound


class Server:
    """Answers batches with twice what was asked, and remembers them."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    async def send(self, asked: Sequence[int]) -> list[object]:
        """Twice each; a refusal for -1, a wrong call for -99, nothing at all for -666."""
        self.batches.append(list(asked))
        await asyncio.sleep(0)
        if -666 in asked:
            raise ConnectionError("gone")
        if -99 in asked:
            raise BadInput("-99 is not allowed")
        return [JobNotFound(1) if one == -1 else 2 * one for one in asked]


async def test_calls_of_one_turn_are_one_batch() -> None:
    server = Server()
    coalescer: Coalescer[int, int] = Coalescer(server.send)
    assert await asyncio.gather(*(coalescer.ask(n) for n in range(50))) == [2 * n for n in range(50)]
    assert len(server.batches) == 1


async def test_a_batch_is_no_larger_than_it_may_be() -> None:
    server = Server()
    coalescer: Coalescer[int, int] = Coalescer(server.send, largest=10)
    await asyncio.gather(*(coalescer.ask(n) for n in range(35)))
    assert [len(batch) for batch in server.batches] == [10, 10, 10, 5]


async def test_a_refusal_is_one_callers_and_a_broken_connection_everybodys() -> None:
    server = Server()
    coalescer: Coalescer[int, int] = Coalescer(server.send)
    answers = await asyncio.gather(coalescer.ask(1), coalescer.ask(-1), return_exceptions=True)
    assert answers[0] == 2
    assert isinstance(answers[1], JobNotFound)
    broken = await asyncio.gather(coalescer.ask(1), coalescer.ask(-666), return_exceptions=True)
    assert [type(one) for one in broken] == [ConnectionError, ConnectionError]


async def test_a_wrong_call_does_not_spoil_the_batch_of_the_others() -> None:
    server = Server()
    coalescer: Coalescer[int, int] = Coalescer(server.send)
    answers = await asyncio.gather(*(coalescer.ask(n) for n in (1, -99, 2)), return_exceptions=True)
    assert (answers[0], type(answers[1]), answers[2]) == (2, BadInput, 4)
    assert server.batches == [[1, -99, 2], [1], [-99], [2]]


async def test_who_asks_again_at_once_is_heard_although_the_runners_are_just_ending() -> None:
    coalescer: Coalescer[int, int] = Coalescer(Server().send, at_once=2)

    async def chain(first: int) -> int:
        for _ in range(200):
            first = await coalescer.ask(first) // 2 + 1
        return first

    async with asyncio.timeout(60):
        assert list(await asyncio.gather(chain(0), chain(1_000))) == [200, 1_200]
    await coalescer.rest()
    assert len(coalescer) == 0


async def test_a_caller_that_goes_away_takes_nobody_with_it() -> None:
    server = Server()
    coalescer: Coalescer[int, int] = Coalescer(server.send)
    leaving, staying = coalescer.ask(1), coalescer.ask(2)
    leaving.cancel()
    assert await staying == 4
    with pytest.raises(asyncio.CancelledError):
        await leaving
