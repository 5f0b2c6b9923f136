"""An example request for a task: a curl command whose payload fits the task's signature."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from inspect import Parameter
from typing import Any, Literal, get_args, get_origin

from tenure.errors import ValidationError
from tenure.jobs.arguments.decode import Reader, hints_of
from tenure.jobs.arguments.encode import stored
from tenure.task import Options, Task

#: Example values, tried in this order: the first one that the parameter's type hint accepts is used.
_EXAMPLES: tuple[Any, ...] = (
    "Ada", 1, 1.5, True, "2030-01-31", "2030-01-31T12:00:00Z", "12:00:00", "1.50",
    "00000000-0000-4000-8000-000000000000", None, [], {},
)  # fmt: skip
#: The example of a type that accepts none of the values above.
BLANK = "FILL THIS IN"
_DEFAULTS = Options()


def payload(task: Task[..., Any]) -> tuple[dict[str, Any], bool]:
    """Example arguments, and whether the task accepts them; an argument without an example is BLANK."""
    hints = hints_of(task.function)
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(task.function).parameters.items():
        is_needed = parameter.default is Parameter.empty and parameter.kind not in (
            Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD,
        )  # fmt: skip
        if is_needed and name != task.takes_context:
            arguments[name] = next(_accepted_values(hints.get(name, Any)), BLANK)
    try:
        task.signature.arguments(arguments)
    except ValidationError:
        return arguments, False
    return arguments, True


def request(url: str, key: str | None, tasks: Mapping[str, Task[..., Any]]) -> str:
    """A command that enqueues one of these tasks: the first by name that has accepted example arguments."""
    payloads = {name: payload(tasks[name]) for name in sorted(tasks)}
    name = next((name for name, (_, is_accepted) in payloads.items() if is_accepted), min(tasks))
    return curl(url, key, tasks[name], payloads[name][0])


def curl(url: str, key: str | None, task: Task[..., Any], arguments: Mapping[str, Any]) -> str:
    """A command that enqueues this task with its own options; `key` is the shell expression of an API key."""
    given: dict[str, Any] = {"type": task.name}
    for option in ("queue", "contract", "tenant", "priority"):
        if (value := getattr(task.given, option)) != getattr(_DEFAULTS, option):
            given["tenant_id" if option == "tenant" else option] = value
    body = json.dumps({**given, "payload": dict(arguments)} if arguments else given)
    authorization = "" if key is None else f'-H "Authorization: Bearer {key}" '
    content = "-H 'Content-Type: application/json'"
    return f"curl -s {shlex.quote(f'{url}/api/v1/jobs')} {authorization}{content} -d {shlex.quote(body)}"


def _accepted_values(hint: Any) -> Iterator[Any]:
    """JSON values that this type hint accepts."""
    reader = Reader(hint)
    for value in (*_own_values(hint), *_EXAMPLES):
        with suppress(Exception):  # a class of the user can raise anything
            encoded = stored(value)
            reader.read(encoded)
            yield encoded


def _own_values(hint: Any) -> tuple[Any, ...]:
    """Values that the hint itself defines: its literals or members, or an object of its fields."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    if not isinstance(hint, type):
        return ()
    if issubclass(hint, Enum):
        return tuple(member.value for member in hint)
    if is_dataclass(hint):
        hints = hints_of(hint)
        needed = [each.name for each in fields(hint) if each.default is MISSING is each.default_factory]
        with suppress(RecursionError):  # a class that contains itself
            return ({name: next(_accepted_values(hints.get(name, Any)), BLANK) for name in needed},)
    return ()
