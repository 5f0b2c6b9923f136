"""Hints for those who have no terminal: where a command is named, the route that does the same."""

from __future__ import annotations

import re

_COMMAND = re.compile(r"tenure (jobs|dlq|queues) ([a-z]+) ([\w.-]*\w)(?: --[a-z]+ \S+?(?=[\s,;.]|$))*")
_PLACES = {"jobs": "/api/v1/jobs", "dlq": "/api/v1/dlq/items", "queues": "/api/v1/queues"}
_LOOKING = {"show": "", "events": "/events", "why": "/why"}


def routed(hint: str) -> str:
    """A hint with routes in place of commands."""
    return _COMMAND.sub(_route, hint)


def _route(command: re.Match[str]) -> str:
    group, verb, which = command.groups()
    path = f"{_PLACES[group]}/{which}"
    return f"GET {path}{_LOOKING[verb]}" if verb in _LOOKING else f"POST {path}/{verb}"
