"""Calls that are made at the same time become one batch; each caller gets its own answer, and none is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar, copy_context

import pytest

from tenure.client.batching import Batcher
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
    batcher: Batcher[int, int] = Batcher(server.send)
    assert await asyncio.gather(*(batcher.ask(n) for n in range(50))) == [2 * n for n in range(50)]
    assert len(server.batches) == 1


async def test_a_batch_is_no_larger_than_it_may_be() -> None:
    server = Server()
    batcher: Batcher[int, int] = Batcher(server.send, largest=10)
    await asyncio.gather(*(batcher.ask(n) for n in range(35)))
    assert [len(batch) for batch in server.batches] == [10, 10, 10, 5]


async def test_a_refusal_is_one_callers_and_a_broken_connection_everybodys() -> None:
    server = Server()
    batcher: Batcher[int, int] = Batcher(server.send)
    answers = await asyncio.gather(batcher.ask(1), batcher.ask(-1), return_exceptions=True)
    assert answers[0] == 2
    assert isinstance(answers[1], JobNotFound)
    broken = await asyncio.gather(batcher.ask(1), batcher.ask(-666), return_exceptions=True)
    assert [type(one) for one in broken] == [ConnectionError, ConnectionError]


async def test_a_wrong_call_does_not_spoil_the_batch_of_the_others() -> None:
    server = Server()
    batcher: Batcher[int, int] = Batcher(server.send)
    answers = await asyncio.gather(*(batcher.ask(n) for n in (1, -99, 2)), return_exceptions=True)
    assert (answers[0], type(answers[1]), answers[2]) == (2, BadInput, 4)
    assert server.batches == [[1, -99, 2], [1], [-99], [2]]


async def test_who_asks_again_at_once_is_heard_although_the_runners_are_just_ending() -> None:
    batcher: Batcher[int, int] = Batcher(Server().send, at_once=2)

    async def chain(first: int) -> int:
        for _ in range(200):
            first = await batcher.ask(first) // 2 + 1
        return first

    async with asyncio.timeout(60):
        assert list(await asyncio.gather(chain(0), chain(1_000))) == [200, 1_200]
    await batcher.flush()
    assert not batcher.is_busy


async def test_a_caller_that_goes_away_takes_nobody_with_it() -> None:
    server = Server()
    batcher: Batcher[int, int] = Batcher(server.send)
    leaving, staying = batcher.ask(1), batcher.ask(2)
    leaving.cancel()
    assert await staying == 4
    with pytest.raises(asyncio.CancelledError):
        await leaving


async def test_submitted_items_are_answered_together_without_futures() -> None:
    server, answered = Server(), list[tuple[int, object]]()
    batcher: Batcher[int, int] = Batcher(
        server.send, on_answers=lambda items, answers: answered.extend(zip(items, answers, strict=True))
    )
    for n in (1, -1, 2):
        batcher.submit(n)
    await batcher.flush()
    assert server.batches == [[1, -1, 2]]
    assert [(item, answer if isinstance(answer, int) else type(answer)) for item, answer in answered] == [
        (1, 2), (-1, JobNotFound), (2, 4),
    ]  # fmt: skip


@pytest.mark.parametrize(("bad", "error"), [(-99, BadInput), (-666, ConnectionError)])
async def test_a_failed_batch_of_submitted_items_answers_each_of_them(bad: int, error: type[Exception]) -> None:
    server, answered = Server(), dict[int, object]()
    batcher: Batcher[int, int] = Batcher(
        server.send, on_answers=lambda items, answers: answered.update(zip(items, answers, strict=True))
    )
    for n in (1, bad, 2):
        batcher.submit(n)
    await batcher.flush()
    assert type(answered[bad]) is error
    assert [type(answered[n]) for n in (1, 2)] == ([int, int] if error is BadInput else [error, error])


async def test_batches_are_sent_in_the_given_context() -> None:
    found: list[str] = []
    name: ContextVar[str] = ContextVar("name", default="none")

    async def send(items: Sequence[int]) -> Sequence[int]:
        found.append(name.get())
        name.set("sender")
        return items

    batcher: Batcher[int, int] = Batcher(send, on_answers=lambda items, answers: None, context=copy_context())
    name.set("caller")
    for n in (1, 2):
        batcher.submit(n)
        await batcher.flush()
    assert (found, name.get()) == (["none", "none"], "caller")
