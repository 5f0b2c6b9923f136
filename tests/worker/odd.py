"""Handlers that end in ways that are hard to report; a process of their own finds them by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import tenure

app = tenure.App("postgresql://nowhere")


class Unprintable(Exception):
    """Cannot be written as text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __repr__(self) -> str:
        raise RuntimeError("no text either")


class UnreadableCode(Exception):
    """Its code cannot be read."""

    @property
    def code(self) -> str:
        raise RuntimeError("no code")


class Unreadable(Exception):
    """None of its attributes can be read or set from outside."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("no attributes")

    def __setattr__(self, name: str, value: Any) -> None:
        raise RuntimeError("none to be set either")


class StrangeText(Exception):
    """Its text is no text that other processes know."""

    def __str__(self) -> str:
        return Text("strange")


class Text(str):
    """A text that cannot leave its process."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        raise RuntimeError("stays here")


class OddReason(tenure.ValidationError):
    """A validation error whose reason cannot be read."""

    @property
    def reason(self) -> str:
        raise RuntimeError("no reason")

    @reason.setter
    def reason(self, value: str) -> None:
        pass


#: How a handler ends, and the type and a part of the text under which that is recorded.
ENDS: dict[str, tuple[Callable[[], BaseException], str, str]] = {
    "unprintable": (Unprintable, "Unprintable", "cannot be shown"),
    "unreadable code": (lambda: UnreadableCode("odd"), "UnreadableCode", "odd"),
    "unreadable": (lambda: Unreadable("odd"), "Unreadable", "odd"),
    "strange text": (StrangeText, "StrangeText", "strange"),
    "odd reason": (lambda: OddReason("odd"), "ValidationError", "odd"),
    "huge": (lambda: ValueError("x" * 5_000_000), "ValueError", "xxx … xxx"),
    "not to be stored": (lambda: ValueError("nul \x00 and lone \ud800"), "ValueError", r"nul \x00 and lone \ud800"),
    "group": (lambda: ExceptionGroup("several", [Unprintable(), ValueError("b")]), "ExceptionGroup", "several"),
    "SystemExit": (lambda: SystemExit(3), "SystemExit", "3"),
    "KeyboardInterrupt": (KeyboardInterrupt, "KeyboardInterrupt", "KeyboardInterrupt"),
    "GeneratorExit": (GeneratorExit, "GeneratorExit", "GeneratorExit"),
    "CancelledError": (asyncio.CancelledError, "CancelledError", "CancelledError"),
    "StopAsyncIteration": (StopAsyncIteration, "StopAsyncIteration", "StopAsyncIteration"),
}


@app.task(max_attempts=1)
async def on_the_loop(how: str) -> None:
    """End so on the loop."""
    raise ENDS[how][0]()


@app.task(max_attempts=1)
async def at_a_stage(ctx: tenure.Context, how: str) -> None:
    """End so inside of a stage."""
    with ctx.stage("fetch"):
        raise ENDS[how][0]()


@app.task(max_attempts=1)
def in_a_thread(how: str) -> None:
    """End so in a thread."""
    raise ENDS[how][0]()


@app.task(max_attempts=1, isolation="process")
async def in_a_process(how: str) -> None:
    """End so in a process."""
    raise ENDS[how][0]()


async def _cancel_oneself(then: str) -> str:
    task = asyncio.current_task()
    assert task is not None
    if then == "wait later":  # the cancel comes when the handler has ended
        asyncio.get_running_loop().call_soon(task.cancel)
        raise ValueError("after the cancel")
    task.cancel()
    if then == "wait":
        await asyncio.sleep(600)
    if then == "raise":
        raise ValueError("after the cancel")
    return "done"


@app.task(max_attempts=1)
async def cancel_oneself(then: str) -> str:
    """Cancel one's own task, which nobody asked for."""
    return await _cancel_oneself(then)


@app.task(max_attempts=1, isolation="process")
async def cancel_oneself_in_a_process(then: str) -> str:
    """The same in a process."""
    return await _cancel_oneself(then)
