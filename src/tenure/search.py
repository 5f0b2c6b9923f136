"""The text that jobs are searched by, one for page, command line and API: `state:dead queue:"slow mail" age:>1h`.

    text = words between blanks; all of them must hold, and no word at all finds every job
    word = name:value           each name once; age once with > and once with <
    value = up to the next blank, or in double quotes, where \\" and \\\\ stand for a quote and a backslash

What is wrong is said of the word that is wrong, with the character where it begins, counted from 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tenure import intake
from tenure.errors import BadInput
from tenure.wording import plain

MAX_CHARACTERS = 1_000
MAX_AGE_S = 36_500 * 86_400

#: Names whose values are texts, and the field of a job that each is compared with.
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
    """Which jobs; None is any. Their age, in seconds, is counted from when they were made, by the database's clock."""

    state: str | None = None
    type: str | None = None
    queue: str | None = None
    tenant_id: str | None = None
    contract: str | None = None
    older_s: float | None = None
    younger_s: float | None = None

    def __str__(self) -> str:
        """The shortest text that finds the same."""
        texts = [(name, getattr(self, field)) for name, field in _FIELDS.items()]
        ages = [(sign, getattr(self, field)) for sign, field in _AGES.items()]
        words = [f"{name}:{_quoted(value)}" for name, value in texts if value is not None]
        return " ".join(words + [f"age:{sign}{_span(seconds)}" for sign, seconds in ages if seconds is not None])


class _Word(NamedTuple):
    """A word as it was read, and where it begins."""

    at: int
    text: str
    name: str
    value: str

    def wrong(self, why: str) -> BadInput:
        """The refusal that points at this word."""
        return _wrong(self.at, self.text, why)


def parse(text: str) -> Search:
    """The search that a text asks for; refuses what it does not understand, by the word."""
    if len(text) > MAX_CHARACTERS:
        raise BadInput(f"the search has {len(text):,} characters; at most {MAX_CHARACTERS:,} are allowed")
    found: dict[str, Any] = {}
    for word in _words(text):
        field, value = _age(word) if word.name == "age" else _field(word)
        if field in found:
            which = f"age:{word.value[0]}" if word.name == "age" else word.name
            raise word.wrong(f"{which} is given twice; give it once")
        found[field] = value
    return Search(**found)


def _words(text: str) -> Iterator[_Word]:
    """The words of a text; refuses what is not name:value, and quotes that do not stand around a value."""
    for match in _WORD.finditer(text):
        at, whole = match.start() + 1, match[0]
        if (quoted := match[2]) is None:
            name, colon, value = whole.partition(":")
            if not colon:
                raise _wrong(at, whole, f"a word is name:value, like state:dead; the names are {_NAMES}")
            if value.startswith('"'):
                raise _wrong(at, whole, f"the quote is not closed; {_QUOTING}")
            if '"' in value:
                raise _wrong(at, whole, f"a quote stands inside of the value; {_QUOTING}")
        else:
            name, value = match[1], _ESCAPE.sub(r"\1", quoted)
            if match[3]:
                raise _wrong(at, whole, "after the closing quote comes a blank, and then the next word")
            if any(sign not in '"\\' for sign in _ESCAPE.findall(quoted)):
                raise _wrong(at, whole, 'in quotes a backslash stands before a quote or a backslash: \\" or \\\\')
        if name not in _FIELDS and name != "age":
            raise _wrong(at, whole, f"there is no name {plain(name, 40)!r}; the names are {_NAMES}")
        if not value:
            example = ">1h" if name == "age" else '"slow mail"'
            raise _wrong(at, whole, f"the value is missing; it follows the colon, like {name}:{example}")
        yield _Word(at, whole, name, value)


def _field(word: _Word) -> tuple[str, str]:
    """A field and the text that it is compared with; refuses a text that no such field can have."""
    field = _FIELDS[word.name]
    try:
        return field, intake.name(field, word.value)
    except BadInput as error:
        raise word.wrong(str(error)) from None


def _age(word: _Word) -> tuple[str, float]:
    """Which side of an age, and the age in seconds; refuses what is no span, or longer than any job is kept."""
    found = _AGE.fullmatch(word.value)
    seconds = None if found is None else intake.span(found[2])
    if found is None or seconds is None:
        raise word.wrong("an age is a span like 30s, 5m, 2h or 7d after > or <: age:>1h for jobs older than an hour")
    if seconds > MAX_AGE_S:
        raise word.wrong(f"an age is at most {MAX_AGE_S // 86_400}d")
    return _AGES[found[1]], float(seconds)


def _wrong(at: int, word: str, why: str) -> BadInput:
    return BadInput(f"'{plain(word, 40)}' at character {at}: {why}")


def _quoted(value: str) -> str:
    if _BARE.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _span(seconds: float) -> str:
    """Whole seconds in the largest unit that leaves no rest."""
    whole = int(seconds)
    unit, size = next((unit, size) for unit, size in _UNITS if whole % size == 0)
    return f"{whole // size}{unit}"
