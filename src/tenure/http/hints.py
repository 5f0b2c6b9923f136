"""Hints for those who have no terminal: where a command is named, the route that does the same."""

from __future__ import annotations

import json
import re
import shlex

_ONE = re.compile(r"tenure (jobs|dlq) ([a-z]+) ([0-9]+)(?: --[a-z]+ [\w]+)*")
_QUEUE = re.compile(r"tenure queues (pause|resume) ('(?:[^']|'\"'\"')*'|[\w@%+=:,./-]*\w)")
_PLACES = {"jobs": "/api/v1/jobs", "dlq": "/api/v1/dlq/items"}
_LOOKING = {"show": "", "events": "/events", "why": "/why"}


def routed(hint: str) -> str:
    """A hint with routes in place of commands."""
    return _QUEUE.sub(_about_a_queue, _ONE.sub(_about_one, hint))


def _about_one(command: re.Match[str]) -> str:
    group, verb, which = command.groups()
    path = f"{_PLACES[group]}/{which}"
    return f"GET {path}{_LOOKING[verb]}" if verb in _LOOKING else f"POST {path}/{verb}"


def _about_a_queue(command: re.Match[str]) -> str:
    verb, name = command.groups()
    return f"POST /api/v1/queues/{verb} with {json.dumps({'queue': shlex.split(name)[0]}, ensure_ascii=False)}"
