"""The search syntax for jobs, shared by page, command line and API: `state:dead queue:"slow mail" age:>1h`.

    text = words separated by blanks; a job must match all of them, and an empty text matches every job
    word = name:value           each name once; age once with > and once with <
    value = up to the next blank, or in double quotes, where \\" and \\\\ stand for a quote and a backslash

An error names the wrong word and the character where it begins, counted from 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tenure.errors import BadInput
from tenure.jobs import validation
from tenure.jobs.formats import to_one_line

MAX_CHARACTERS = 1_000
MAX_AGE_S = 36_500 * 86_400

#: Search names with a string value → the job's field.
_FIELDS = {"state": "state", "type": "type", "queue": "queue", "tenant": "tenant_id", "contract": "contract"}
_NAMES = ", ".join([*_FIELDS, "age"])
_AGES = {">": "older_s", "<": "younger_s"}
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))

_WORD = re.compile(r'([^\s:]*):"((?:[^"\\]|\\.)*)"(\S*)|\S+', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_BARE = re.compile(r'[^\s"]+')
_AGE = re.compile(r"([<>])=?(.*)", re.DOTALL)
_QUOTING = 'a value with blanks or quotes stands in double quotes, like queue:"slow mail"'


@dataclass(frozen=True, slots=True)
class Search:
    """A filter for jobs; None matches any. Ages are in seconds since enqueue, by the database's clock."""

    state: str | None = None
    type: str | None = None
    queue: str | None = None
    tenant_id: str | None = None
    contract: str | None = None
    older_s: float | None = None
    younger_s: float | None = None

    def __str__(self) -> str:
        """Return the shortest search text with the same meaning."""
        texts = [(name, getattr(self, field)) for name, field in _FIELDS.items()]
        ages = [(sign, getattr(self, field)) for sign, field in _AGES.items()]
        words = [f"{name}:{_quoted(value)}" for name, value in texts if value is not None]
        return " ".join(
            words + [f"age:{sign}{_format_seconds(seconds)}" for sign, seconds in ages if seconds is not None]
        )


def parse(text: str) -> Search:
    """Parse a search text; refuses a wrong word by its position."""
    if len(text) > MAX_CHARACTERS:
        raise BadInput(f"the search has {len(text):,} characters; at most {MAX_CHARACTERS:,} are allowed")
    found: dict[str, Any] = {}
    for word in _WORD.finditer(text):
        try:
            name, value = _split(word)
            field, wanted = _age(value) if name == "age" else _field(name, value)
            if field in found:
                raise BadInput(f"{f'age:{value[0]}' if name == 'age' else name} is given twice; give it once")
        except BadInput as error:
            raise BadInput(f"'{to_one_line(word[0], 40)}' at character {word.start() + 1}: {error}") from None
        found[field] = wanted
    return Search(**found)


def _split(word: re.Match[str]) -> tuple[str, str]:
    """Return the name and the value of a word; refuses one that is not name:value, and misplaced quotes."""
    if (quoted := word[2]) is None:
        name, colon, value = word[0].partition(":")
        if not colon:
            raise BadInput(f"a word is name:value, like state:dead; the names are {_NAMES}")
        if value.startswith('"'):
            raise BadInput(f"the quote is not closed; {_QUOTING}")
        if '"' in value:
            raise BadInput(f"a quote stands inside of the value; {_QUOTING}")
    else:
        name, value = word[1], _ESCAPE.sub(r"\1", quoted)
        if word[3]:
            raise BadInput("after the closing quote comes a blank, and then the next word")
        if any(sign not in '"\\' for sign in _ESCAPE.findall(quoted)):
            raise BadInput('in quotes a backslash stands before a quote or a backslash: \\" or \\\\')
    if name not in _FIELDS and name != "age":
        raise BadInput(f"there is no name {to_one_line(name, 40)!r}; the names are {_NAMES}")
    if not value:
        example = ">1h" if name == "age" else '"slow mail"'
        raise BadInput(f"the value is missing; it follows the colon, like {name}:{example}")
    return name, value


def _field(name: str, value: str) -> tuple[str, str]:
    """Return a field and its value; refuses a value that the field cannot have."""
    return _FIELDS[name], validation.check_name(_FIELDS[name], value)


def _age(value: str) -> tuple[str, float]:
    """Return the field and the seconds of an age; refuses a value that is not a duration, or too long."""
    found = _AGE.fullmatch(value)
    seconds = None if found is None else validation.parse_duration(found[2])
    if found is None or seconds is None:
        raise BadInput("an age is a span like 30s, 5m, 2h or 7d after > or <: age:>1h for jobs older than an hour")
    if seconds > MAX_AGE_S:
        raise BadInput(f"an age is at most {MAX_AGE_S // 86_400}d")
    return _AGES[found[1]], float(seconds)


def _quoted(value: str) -> str:
    if _BARE.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _format_seconds(seconds: float) -> str:
    """Return whole seconds in the largest unit without a remainder."""
    whole = int(seconds)
    unit, size = next((unit, size) for unit, size in _UNITS if whole % size == 0)
    return f"{whole // size}{unit}"
