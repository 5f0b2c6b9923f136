"""A call is retried after the errors that its caller names; a lost answer is never reported as nothing done."""

from __future__ import annotations

import pytest

from tenure.client import retry as module
from tenure.client.retry import retry
from tenure.errors import CannotConnect, ConnectionLost, NotPermitted, TenureError, Unavailable


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry at once."""

    async def wait(self: module.RetryDelay) -> None:
        pass

    monkeypatch.setattr(module.RetryDelay, "wait", wait)


class Server:
    """Raises these errors, one per call, and then answers."""

    def __init__(self, *errors: TenureError) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def call(self) -> str:
        """Raise the next error, or answer."""
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


async def test_a_call_is_made_until_it_answers_and_each_error_is_reported() -> None:
    server, seen = Server(ConnectionLost("cut"), CannotConnect("away")), list[tuple[str, int]]()
    errors = (ConnectionLost, CannotConnect)
    assert await retry(server.call, errors, on_error=lambda error, failed: seen.append((str(error), failed))) == "done"
    assert seen == [("cut", 1), ("away", 2)]


async def test_an_error_that_is_not_named_is_raised_at_once() -> None:
    server = Server(CannotConnect("away"))
    with pytest.raises(CannotConnect):
        await retry(server.call, (ConnectionLost,), after_lost_answer=(CannotConnect,))
    assert server.calls == 1


async def test_after_a_lost_answer_the_call_is_retried_while_nobody_is_there() -> None:
    server = Server(ConnectionLost("cut"), CannotConnect("away"), Unavailable("busy"))
    again = (CannotConnect, Unavailable)
    assert await retry(server.call, (ConnectionLost,), after_lost_answer=again, attempts=6) == "done"
    assert server.calls == 4


async def test_the_last_attempt_raises_the_lost_answer_because_the_call_may_have_been_done() -> None:
    server = Server(ConnectionLost("cut"), CannotConnect("away"), NotPermitted("no key"))
    with pytest.raises(ConnectionLost, match="cut"):
        await retry(server.call, (ConnectionLost,), after_lost_answer=(CannotConnect, Unavailable), attempts=3)
    assert server.calls == 3


async def test_what_on_error_raises_ends_the_retries() -> None:
    def refuse(error: TenureError, _: int) -> None:
        raise error

    server = Server(NotPermitted("no key"))
    with pytest.raises(NotPermitted):
        await retry(server.call, (Unavailable,), on_error=refuse)
    assert server.calls == 1
