"""The short notation of a declaration: `states`, `path`, `event` and `view`.

states(draft="waiting", approved="ready")                 name → roles
path("approve", "draft > approved")                       trigger, source|source > state > state:role
event("dead", "exhaust fatal", "reason due_at=due")       name, triggers, key=field
view("tasks", "jobs", "task_id=id type")                  name, rows, column=field
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tenure.contracts.declaration import Due, Event, Hop, Path, Role, View
from tenure.errors import Unsound

#: When the job is due after a path that does not say it; after any other trigger, the due time stays.
_DUE: Mapping[str, Due] = {
    "retry": "backoff", "expire": "now", "promote": "now", "snooze": "given", "hand_back": "given",
}  # fmt: skip


def states(**names: str) -> dict[str, tuple[Role, ...]]:
    """Declare states with their roles: `states(queued="ready", Failed="waiting done")`."""
    return {name: tuple(roles.split()) for name, roles in names.items()}  # type: ignore[arg-type]


def path(
    trigger: str, route: str, *, due: Due | None = None, letter: str | None = None, choice: str | None = None
) -> Path:
    """Declare a path: `path("retry", "running > queued")`.

    A trigger that the engine does not know is a decision: a person takes the path. `due` says when the job is due
    afterwards: backoff for retry, now for expire and promote, given for snooze and hand_back, else it stays. `letter`
    is the reason of the dead letter that the path writes; `choice` names the end that a job type may choose.
    """
    if "->" in route or "→" in route:
        raise Unsound("being declared", [f"path {trigger}: write {route!r} with > between the states"])
    sources, *steps = [step.strip() for step in route.split(">")]
    named = (step.partition(":") for step in steps)
    hops = tuple(Hop(state, role) for state, _, role in named)  # type: ignore[arg-type]
    split = tuple(source.strip() for source in sources.split("|"))
    return Path(trigger, split, hops, due or _DUE.get(trigger, "keep"), letter, choice)


def event(name: str, on: str, keys: str = "", *, fades: bool = False) -> Event:
    """Declare an event by its triggers and keys: `event("dead", "exhaust fatal", "reason due_at=due")`."""
    return Event(name, tuple(on.split()), _fields(keys), fades=fades)


def view(
    name: str, rows: Literal["jobs", "events", "letters", "finished", "outbox"], columns: str, **objects: str
) -> View:
    """Declare a view: `view("tasks", "jobs", "task_id=id type")` shows the field `id` as `task_id`, and `type`."""
    return View(name, rows, _fields(columns), {column: _fields(keys) for column, keys in objects.items()})


def _fields(text: str) -> dict[str, str]:
    """Return name → field of the words `name=field`; a word without a field shows the field of that name."""
    pairs = [word.partition("=") for word in text.split()]
    return {name: field or name for name, _, field in pairs}
