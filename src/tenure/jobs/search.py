"""The search syntax for jobs and dead letters, shared by page, command line and API: `state:dead queue:"slow mail"`.

    text = words separated by blanks; a job must match all of them, and an empty text matches every job
    word = name:value           each name once; age and took once with > and once with <; payload.PATH once a path
    value = up to the next blank, or in double quotes, where \\" and \\\\ stand for a quote and a backslash

An error names the wrong word and the character where it begins, counted from 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar

from tenure.errors import BadInput
from tenure.jobs import validation
from tenure.jobs.formats import to_one_line

MAX_CHARACTERS = 1_000
MAX_AGE_S = 36_500 * 86_400
#: What was decided about a dead letter.
STATUSES: Final = ("open", "requeued", "discarded")

_PAYLOAD: Final = "payload."
_MAX_DEPTH: Final = 20
#: Names whose value is a span of time after > or <, and their fields.
_SPANS: Final = {
    "age": {">": "older_s", "<": "younger_s"},
    "took": {">": "longer_s", "<": "shorter_s"},
}
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))

_WORD = re.compile(r'([^\s:]*):"((?:[^"\\]|\\.)*)"(\S*)|\S+', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_BARE = re.compile(r'[^\s"]+')
_AGE = re.compile(r"([<>])=?(.*)", re.DOTALL)
_QUOTING = 'a value with blanks or quotes stands in double quotes, like queue:"slow mail"'

#: The keys that lead to a value in a payload, and the value as text.
PayloadFilter = tuple[tuple[str, ...], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filter:
    """What searches for jobs and for dead letters have in common; None matches any. Ages are in seconds."""

    type: str | None = None
    queue: str | None = None
    tenant_id: str | None = None
    contract: str | None = None
    reason: str | None = None
    group: str | None = None
    error: str | None = None
    worker: str | None = None
    payload: tuple[PayloadFilter, ...] = ()
    older_s: float | None = None
    younger_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search(_Filter):
    """A filter for jobs. Ages count since the enqueue, by the database's clock, run times since the last claim."""

    state: str | None = None
    longer_s: float | None = None
    shorter_s: float | None = None

    def __str__(self) -> str:
        """Return the shortest search text with the same meaning."""
        return _text(self, _JOB_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterSearch(_Filter):
    """A filter for dead letters. Ages count since the letter was written, by the database's clock."""

    status: str | None = None
    release: str | None = None

    def __str__(self) -> str:
        """Return the shortest search text with the same meaning."""
        return _text(self, _LETTER_NAMES)


#: Search names with a string value → the field.
_NAMES: Final = {
    "type": "type", "queue": "queue", "tenant": "tenant_id", "contract": "contract", "reason": "reason",
    "group": "group", "error": "error", "worker": "worker",
}  # fmt: skip
_JOB_NAMES: Final = {"state": "state", **_NAMES}
_LETTER_NAMES: Final = {"status": "status", **_NAMES, "release": "release"}
#: How words begin, for a person who chooses one.
JOB_SUGGESTIONS: Final = (*(f"{name}:" for name in _JOB_NAMES), _PAYLOAD, "age:>1h", "age:<1h", "took:>5s")
LETTER_SUGGESTIONS: Final = (*(f"{name}:" for name in _LETTER_NAMES), _PAYLOAD, "age:>1h", "age:<1h")
_Found = TypeVar("_Found", Search, LetterSearch)


def parse(text: str) -> Search:
    """Parse a search for jobs; refuses a wrong word by its position."""
    return _parse(Search, _JOB_NAMES, ("age", "took"), text)


def parse_letters(text: str) -> LetterSearch:
    """Parse a search for dead letters; refuses a wrong word by its position."""
    return _parse(LetterSearch, _LETTER_NAMES, ("age",), text)


def filters_of(search: Search | LetterSearch) -> dict[str, Any]:
    """Return the filters of a search by name, as the store takes them."""
    return {field.name: getattr(search, field.name) for field in fields(search)}


def _parse(kind: type[_Found], names: Mapping[str, str], spans: Sequence[str], text: str) -> _Found:
    if len(text) > MAX_CHARACTERS:
        raise BadInput(f"the search has {len(text):,} characters; at most {MAX_CHARACTERS:,} are allowed")
    found: dict[str, Any] = {}
    payload: dict[tuple[str, ...], str] = {}
    for word in _WORD.finditer(text):
        try:
            name, value = _split(word, names, spans)
            if name.startswith(_PAYLOAD):
                path = _path(name)
                if path in payload:
                    raise BadInput(f"{name} is given twice; give it once")
                payload[path] = validation.check_name("payload value", value)
                continue
            field, wanted = _span(name, value) if name in spans else _field(names[name], value)
            if field in found:
                raise BadInput(f"{f'{name}:{value[0]}' if name in spans else name} is given twice; give it once")
        except BadInput as error:
            raise BadInput(f"'{to_one_line(word[0], 40)}' at character {word.start() + 1}: {error}") from None
        found[field] = wanted
    return kind(**found, payload=tuple(payload.items()))


def _split(word: re.Match[str], names: Mapping[str, str], spans: Sequence[str]) -> tuple[str, str]:
    """Return the name and the value of a word; refuses one that is not name:value, and misplaced quotes."""
    known = ", ".join([*names, *spans, "payload.PATH"])
    if (quoted := word[2]) is None:
        name, colon, value = word[0].partition(":")
        if not colon:
            raise BadInput(f"a word is name:value, like {next(iter(names))}:{_EXAMPLES[next(iter(names))]}; "
                           f"the names are {known}")  # fmt: skip
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
    if name not in names and name not in spans and not name.startswith(_PAYLOAD):
        raise BadInput(f"there is no name {to_one_line(name, 40)!r}; the names are {known}")
    if not value:
        example = ">1h" if name in spans else '"slow mail"'
        raise BadInput(f"the value is missing; it follows the colon, like {name}:{example}")
    return name, value


_NAMED: Final = {"age": "an age", "took": "a run time"}
_EXAMPLES: Final = {"state": "dead", "status": "open"}


def _path(name: str) -> tuple[str, ...]:
    """Return the keys of payload.KEY.KEY; refuses an empty one, and too many."""
    path = tuple(name.removeprefix(_PAYLOAD).split("."))
    if not all(path):
        raise BadInput("a path is the keys that lead to a value, each after a dot, like payload.user.id:7")
    if len(path) > _MAX_DEPTH:
        raise BadInput(f"a path has at most {_MAX_DEPTH} keys")
    for key in path:
        validation.check_name("payload value", key)
    return path


def _field(field: str, value: str) -> tuple[str, str]:
    """Return a field and its value; refuses a value that the field cannot have."""
    if field == "status" and value not in STATUSES:
        raise BadInput(f"a dead letter is {', '.join(STATUSES)}, not {to_one_line(value, 40)!r}")
    names = {"reason": "reason_code", "status": "state"}
    return field, validation.check_name(names.get(field, field), value)


def _span(name: str, value: str) -> tuple[str, float]:
    """Return the field and the seconds of an age or a run time; refuses a value that is no duration, or too long."""
    found = _AGE.fullmatch(value)
    seconds = None if found is None else validation.parse_duration(found[2])
    if found is None or seconds is None:
        example = "age:>1h for jobs older than an hour" if name == "age" else "took:>5s for jobs that ran for longer"
        raise BadInput(f"{_NAMED[name]} is a span like 30s, 5m, 2h or 7d after > or <: {example}")
    if seconds > MAX_AGE_S:
        raise BadInput(f"{_NAMED[name]} is at most {MAX_AGE_S // 86_400}d")
    return _SPANS[name][found[1]], float(seconds)


def _text(search: _Filter, names: Mapping[str, str]) -> str:
    texts = [(name, getattr(search, field)) for name, field in names.items()]
    texts += [(_PAYLOAD + ".".join(path), value) for path, value in search.payload]
    words = [f"{name}:{_quoted(value)}" for name, value in texts if value is not None]
    spans = [
        (f"{name}:{sign}", getattr(search, field, None))
        for name, by_sign in _SPANS.items()
        for sign, field in by_sign.items()
    ]
    return " ".join(words + [f"{begin}{_format_seconds(seconds)}" for begin, seconds in spans if seconds is not None])


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
