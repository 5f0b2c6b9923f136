"""The request that `tenure dev` prints: arguments that the task takes, in the queue where its workers look."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import pytest

from tenure import App, Context
from tenure.cli.services.example_request import BLANK, curl, payload, request
from tenure.task import Task


class Size(Enum):
    SMALL = "s"


@dataclass
class Order:
    day: date
    size: Size
    count: int = 1


@dataclass
class Endless:
    inner: Endless


class Cake:
    """Nobody can write one down as JSON."""

    def __init__(self, layers: int) -> None:
        self.layers = layers


class Fussy(str):
    """Raises what nobody expects."""

    def __new__(cls, text: str) -> Fussy:
        raise ZeroDivisionError(text)


async def plain(name: str, count: int, ratio: float, sure: bool) -> None: ...
async def times(day: date, moment: datetime) -> None: ...
async def odd(size: Size, kind: Literal["tall"], price: Decimal, id: UUID, span: timedelta) -> None: ...
async def nested(names: list[str], more: dict[str, int], maybe: Cake | None) -> None: ...
async def ordered(order: Order) -> None: ...
async def endless(thing: Endless) -> None: ...
async def unsaid(anything, /, *args, **kwargs): ...  # type: ignore[no-untyped-def]
async def none_needed(ctx: Context, note: str = "", *, loud: bool = False) -> None: ...
async def baked(cake: Cake) -> None: ...
async def fussy(text: Fussy) -> None: ...


def made(function: Callable[..., Any], **options: Any) -> Task[..., Any]:
    task: Task[..., Any] = App("postgresql:///none").task(**options)(function)
    return task


def sent(line: str) -> dict[str, Any]:
    """The body of a request, as a shell would hand it over."""
    words = shlex.split(line)
    assert words[:2] == ["curl", "-s"]
    body: dict[str, Any] = json.loads(words[words.index("-d") + 1])
    return body


@pytest.mark.parametrize("function", [plain, times, odd, nested, ordered, unsaid, none_needed])
def test_arguments_are_made_that_the_task_takes(function: Callable[..., Any]) -> None:
    task = made(function)
    arguments, fits = payload(task)
    assert fits
    task.signature.arguments(json.loads(json.dumps(arguments)))
    assert (arguments == {}) == (function is none_needed)


@pytest.mark.parametrize("function", [baked, fussy, endless])
def test_what_nobody_can_make_up_is_a_blank_that_is_seen(function: Callable[..., Any]) -> None:
    arguments, fits = payload(made(function))
    assert not fits
    assert list(arguments.values()) == [BLANK]
    assert sent(request("http://here", None, {"it": made(function)}))["payload"] == arguments


def test_the_request_goes_where_the_tasks_workers_look() -> None:
    task = made(plain, queue="Ada's", contract="simple", tenant="acme", priority=9)
    assert sent(curl("http://here", None, task, {"name": "it's"})) == {
        "type": "plain", "queue": "Ada's", "contract": "simple", "tenant_id": "acme", "priority": 9,
        "payload": {"name": "it's"},
    }  # fmt: skip
    assert sent(curl("http://here", None, made(plain), {})) == {"type": "plain"}


def test_a_task_is_chosen_for_which_arguments_can_be_made() -> None:
    tasks = {"baked": made(baked), "none_needed": made(none_needed), "plain": made(plain)}
    assert sent(request("http://here", None, tasks)) == {"type": "none_needed"}
    assert sent(request("http://here", None, {"baked": made(baked)}))["type"] == "baked"


def test_a_key_is_in_the_request_where_the_dispatcher_asks_for_one() -> None:
    assert '-H "Authorization: Bearer $TENURE_KEY" ' in curl("http://here", "$TENURE_KEY", made(plain), {})
    assert "Authorization" not in curl("http://here", None, made(plain), {})
