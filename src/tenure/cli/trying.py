"""What to type to try a task: a request to the dispatcher whose payload fits the task's own signature."""

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
from tenure.hints import hints_of, loader
from tenure.stored import stored
from tenure.task import Options, Task

#: Tried in this order against a parameter's hint: the first that its loader takes stands for it.
_VALUES: tuple[Any, ...] = (
    "Ada", 1, 1.5, True, "2030-01-31", "2030-01-31T12:00:00Z", "12:00:00", "1.50",
    "00000000-0000-4000-8000-000000000000", None, [], {},
)  # fmt: skip
#: Stands for a value that only its author can think of.
BLANK = "FILL THIS IN"
_DEFAULTS = Options()


def payload(task: Task[..., Any]) -> tuple[dict[str, Any], bool]:
    """Arguments that the task takes, and whether it does: where no value is known for one, a blank stands there."""
    hints = hints_of(task.function)
    made: dict[str, Any] = {}
    for name, parameter in inspect.signature(task.function).parameters.items():
        is_needed = parameter.default is Parameter.empty and parameter.kind not in (
            Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD,
        )  # fmt: skip
        if is_needed and name != task.takes_context:
            made[name] = next(_fitting(hints.get(name, Any)), BLANK)
    try:
        task.signature.arguments(made)
    except ValidationError:
        return made, False
    return made, True


def request(url: str, key: str | None, tasks: Mapping[str, Task[..., Any]]) -> str:
    """The command that makes a job of one of these tasks: the first, by name, for which arguments can be made up."""
    found = {name: payload(tasks[name]) for name in sorted(tasks)}
    name = next((name for name, (_, fits) in found.items() if fits), min(tasks))
    return curl(url, key, tasks[name], found[name][0])


def curl(url: str, key: str | None, task: Task[..., Any], arguments: Mapping[str, Any]) -> str:
    """The command that makes a job of this task where its workers look for it; `key`: how the shell finds one."""
    given = task.given
    wanted: dict[str, tuple[Any, Any]] = {
        "type": (task.name, None), "queue": (given.queue, _DEFAULTS.queue),
        "contract": (given.contract, _DEFAULTS.contract), "tenant_id": (given.tenant, _DEFAULTS.tenant),
        "priority": (given.priority, _DEFAULTS.priority), "payload": (dict(arguments), {}),
    }  # fmt: skip
    body = json.dumps({name: value for name, (value, default) in wanted.items() if value != default})
    authorization = "" if key is None else f'-H "Authorization: Bearer {key}" '
    content = "-H 'Content-Type: application/json'"
    return f"curl -s {shlex.quote(f'{url}/api/v1/jobs')} {authorization}{content} -d {shlex.quote(body)}"


def _fitting(hint: Any) -> Iterator[Any]:
    """JSON values that this hint takes."""
    load = loader(hint)
    for value in (*_of_its_own(hint), *_VALUES):
        with suppress(Exception):  # a class of the user's can raise anything
            kept = stored(value)
            load(kept)
            yield kept


def _of_its_own(hint: Any) -> tuple[Any, ...]:
    """Values that only this hint knows: those that it lists, or an object of its fields."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    if not isinstance(hint, type):
        return ()
    if issubclass(hint, Enum):
        return tuple(member.value for member in hint)
    if is_dataclass(hint):
        hints = hints_of(hint)
        needed = [each.name for each in fields(hint) if each.default is MISSING is each.default_factory]
        with suppress(RecursionError):  # one that needs another of its own kind
            return ({name: next(_fitting(hints.get(name, Any)), BLANK) for name in needed},)
    return ()
