"""The fingerprint of a failure: equal for failures of one cause, whatever the data and the line numbers.

It is made of the type, the code, and of each traceback in the chain of exceptions the frames (file and function), the
line that raised, and the message. What differs from one failure to the next is left out:

    line numbers, folders      a release moves them
    repeated frames            a recursion has any number of them
    numbers, ids, quoted text  of messages: they are data
    the whole message          where the line that raised is known and has the message's text in it

The frames of JavaScript and Java (`at f (file:1:2)`) are read too. Without frames the message alone decides.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

#: Part of every fingerprint; a change of the rules changes it, so that no group mixes two sets of rules.
_RULES: Final = "1"
#: The number of sections that count at each end of a chain of exceptions: a retry may wrap an error many times.
_SECTIONS: Final = 2
_MAX_FRAMES: Final = 40
_MAX_TEXT: Final = 500

#: The margin of a traceback inside of an exception group.
_MARGIN = re.compile(r"^\s*(?:[|+]-*\s?)+(?:-+ ?[\d.]* ?-*)?")
_PYTHON_FRAME = re.compile(r'^\s*File "(?P<file>[^"]*)", line \d+(?:, in (?P<function>.*))?$')
_OTHER_FRAME = re.compile(
    r"^\s*at (?:async )?(?:(?P<function>[^(]+?) \(|(?P<method>[\w.$<>]+)\()?(?P<file>[^()]*?):\d+(?::\d+)?\)?$"
)
_BEGIN = re.compile(r"^\s*(?:Exception Group )?Traceback \(most recent call last\):$")
_CARETS = re.compile(r"^[\s~^]+$")
_REPEATED = re.compile(r"^\s*\[Previous line repeated \d+ more times?\]$")
#: Frames that some versions of Python have and others have not.
_COMPREHENSIONS: Final = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"})

#: What is data in a message, most specific first; each becomes its name.
_DATA: Final = (
    (re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"), "<uuid>"),
    (re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>)]+"), "<url>"),
    (re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "<email>"),
    (re.compile(r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'(?!\w)|`[^`\n]*`|“[^”\n]*”"), "<text>"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), "<hex>"),
    (re.compile(r"(?:(?<=\s)|^)(?:/[\w.@+~-]+){2,}/?"), "<path>"),
    (re.compile(r"\b(?=[0-9a-fA-F]*\d)(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{8,}\b"), "<hex>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"), "<time>"),
    (re.compile(r"[+-]?\d+(?:[.,:]\d+)*"), "<n>"),
)  # fmt: skip
#: A number that says which error it is, and is no data.
_ERRNO = re.compile(r"\[(?:Errno|WinError) \d+\]|\b(?:HTTP|status)(?: code)?[ :=]*[1-5]\d\d\b", re.IGNORECASE)


@dataclass(slots=True)
class _Section:
    """One traceback of a chain: its frames, the line of the last one, and the line about the exception."""

    frames: list[str] = field(default_factory=list)
    raising_line: str = ""
    end: str = ""


def fingerprint(error: Mapping[str, Any]) -> str:
    """Return the fingerprint of a stored failure: 16 hexadecimal digits."""
    kind, code = _text(error.get("type")), _text(error.get("code"))
    message, stack = _text(error.get("message")), _text(error.get("stack"))
    parts = [_RULES, kind, code]
    sections = [section for section in _sections(stack) if section.frames]
    if not sections:
        return _hash([*parts, normalize(message)])
    for section in _distinct(sections):
        name, _, text = section.end.partition(":")
        if name.rpartition(".")[2] == "RecursionError":  # where it met the limit is chance: only what repeats counts
            times = Counter(section.frames)
            often = max(times.values()) / 10
            parts += [name, *sorted(frame for frame, count in times.items() if count > often)]
            continue
        frames = list(dict.fromkeys(section.frames))
        parts += [name, *frames[-_MAX_FRAMES:], section.raising_line]
        # The message of a group has the number of its members, in words.
        if not _has_message(section.raising_line) and not name.endswith("ExceptionGroup"):
            parts.append(normalize(text))
    return _hash(parts)


def normalize(message: str) -> str:
    """Return the first line of a message without its data: numbers, ids, quoted texts, addresses and paths."""
    line = message.strip().partition("\n")[0][: 4 * _MAX_TEXT]
    kept: list[str] = []

    def keep(match: re.Match[str]) -> str:
        kept.append(match[0])
        return f"\x00{'k' * len(kept)}\x00"

    line = _ERRNO.sub(keep, line)
    for pattern, name in _DATA:
        line = pattern.sub(name, line)
    for number, text in enumerate(kept, 1):
        line = line.replace(f"\x00{'k' * number}\x00", text)
    return " ".join(line.split())[:_MAX_TEXT]


def _sections(stack: str) -> Iterator[_Section]:
    """Yield the tracebacks of a stack, the first cause first."""
    section = _Section()
    lines = stack.splitlines()
    for number, raw in enumerate(lines):
        line = _MARGIN.sub("", raw) if raw.lstrip()[:1] in ("|", "+") else raw
        if _BEGIN.match(line):
            if section.frames:
                yield section
            section = _Section()
        elif frame := _PYTHON_FRAME.match(line):
            if section.end:  # another traceback without its first line, where the middle of the stack was cut out
                yield section
                section = _Section()
            section.raising_line = ""
            if (function := frame["function"] or "") not in _COMPREHENSIONS:
                section.frames.append(_frame(frame["file"], function))
        elif frame := _OTHER_FRAME.match(line):
            if not section.frames and number and not section.end:
                section.end = lines[0].strip()
            section.frames.append(_frame(frame["file"], frame["function"] or frame["method"] or ""))
        elif not line.strip() or _CARETS.match(line) or _REPEATED.match(line):
            continue
        elif section.frames and not section.end:
            if line[:1].isspace():
                section.raising_line = section.raising_line or " ".join(line.split())[:_MAX_TEXT]
            else:
                section.end = line.strip()
    if section.frames:
        yield section


def _distinct(sections: Sequence[_Section]) -> list[_Section]:
    """Return each section once, in order, without the middle of a long chain."""
    found = {(tuple(dict.fromkeys(one.frames)), one.raising_line, one.end.partition(":")[0]): one for one in sections}
    kept = list(found.values())
    return kept if len(kept) <= 2 * _SECTIONS else [*kept[:_SECTIONS], *kept[-_SECTIONS:]]


def _frame(file: str, function: str) -> str:
    """Return a frame as file and function, without folders and without numbers in made names."""
    name = re.split(r"[/\\]", file)[-1]
    return f"{_without_numbers(name)}:{_without_numbers(function)}"


def _without_numbers(name: str) -> str:
    return re.sub(r"[0-9a-fA-F]*\d[0-9a-fA-F]{3,}|\d+", "N", name)


def _has_message(line: str) -> bool:
    """Whether a line raises an exception whose message it has in it: then the message differs by data alone."""
    is_whole = line.count("(") == line.count(")")
    return line.startswith(("raise ", "throw ")) and is_whole and ('"' in line or "'" in line)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _hash(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:16]
