"""The fingerprint of a failure: one for each cause, whatever the data, the release and the folder."""

from __future__ import annotations

import importlib.util
import inspect
import random
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tenure.jobs.fingerprint import fingerprint, normalize
from tenure.jobs.job import Failure
from tests.jobs import failing_code

RELEASES, TIMES = 3, 24


def release(number: int, folder: Path) -> Any:
    """The failing code as a release of an application: in a folder of its own, with other line numbers."""
    place = folder / f"releases/2026-11-{number:02}"
    place.mkdir(parents=True)
    path = place / "shop.py"
    source = Path(failing_code.__file__).read_text()
    head, _, body = source.partition("class OutOfStock")
    path.write_text(head + "# changed\n" * (7 * number) + "class OutOfStock" + body)
    spec = importlib.util.spec_from_file_location(f"shop_{number}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for kind in (module.OutOfStock, module.ImportFailed):
        kind.__module__ = "shop"
    return module


def corpus(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """At least a thousand real failures, each with its cause."""
    rng = random.Random(1)
    found = []
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 200)  # a thousand frames take long to format
    for number in range(RELEASES):
        shop = release(number, folder)
        for cause in shop.CAUSES:
            for _ in range(TIMES):
                try:
                    cause(rng)
                except Exception as error:
                    found.append((cause.__name__, dict(Failure.of(error).facts())))
    sys.setrecursionlimit(limit)
    return found


def test_a_thousand_failures_of_fourteen_causes_make_at_most_fifteen_groups(tmp_path: Path) -> None:
    failures = corpus(tmp_path)
    assert len(failures) >= 1_000
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    for cause, error in failures:
        groups[fingerprint(error)][cause] += 1
    assert len({cause for cause, _ in failures}) == 14
    shown = {key: dict(causes) for key, causes in groups.items()}
    assert len(groups) <= 15, shown
    pure = sum(max(causes.values()) for causes in groups.values())
    assert pure / len(failures) >= 0.99, shown


def test_without_a_traceback_the_message_decides_without_its_data() -> None:
    def of(message: str, **more: str) -> str:
        return fingerprint({"type": "Timeout", "message": message, **more})

    assert of("no answer from 10.0.0.7 within 30 s") == of("no answer from 10.1.2.3 within 5 s")
    assert of("no user 'ada'") == of("no user 'bob'")
    assert of("no user 'ada'") != of("no order 'ada'")
    assert of("late", code="A") != of("late", code="B")
    assert of("late") != fingerprint({"type": "Other", "message": "late"})


@pytest.mark.parametrize(
    ("message", "normal"),
    [
        ("job 17 took 3.5 s", "job <n> took <n> s"),
        ("no such order: 0b0e7f0a-5f0e-4f57-9d0c-3f3f6f1a2b4c", "no such order: <uuid>"),
        ("GET https://a.example/x?y=1 gave HTTP 503", "GET <url> gave HTTP 503"),
        ("[Errno 2] No such file or directory: '/tmp/x'", "[Errno 2] No such file or directory: <text>"),
        ("cannot reach ada@example.com at 2026-11-19T12:00:00Z", "cannot reach <email> at <time>"),
        ("it doesn't fit, and can't", "it doesn't fit, and can't"),
        ("object at 0x7f00aa", "object at <hex>"),
        ("cannot open /srv/app/file.csv", "cannot open <path>"),
        ("first line\nsecond 2", "first line"),
    ],
)
def test_the_data_of_a_message(message: str, normal: str) -> None:
    assert normalize(message) == normal


def test_stacks_of_other_languages_have_frames_too() -> None:
    def js(folder: str, line: int, who: str = "send") -> dict[str, str]:
        frames = f"    at {who} ({folder}/mail.js:{line}:7)\n    at async run (node:internal/a:1:2)"
        stack = f"TypeError: x is not a function\n{frames}"
        return {"type": "TypeError", "message": "x is not a function", "stack": stack}

    def java(line: int) -> dict[str, str]:
        frames = f"\tat shop.Mail.send(Mail.java:{line})\n\tat shop.Main.main(Main.java:9)"
        stack = f"java.lang.IllegalStateException: closed\n{frames}"
        return {"type": "IllegalStateException", "message": "closed", "stack": stack}

    assert fingerprint(js("/a", 3)) == fingerprint(js("/b", 30))
    assert fingerprint(js("/a", 3)) != fingerprint(js("/a", 3, who="receive"))
    assert fingerprint(java(4)) == fingerprint(java(40)) != fingerprint(js("/a", 4))


@pytest.mark.parametrize("odd", [{}, {"type": None, "message": 7, "stack": ["x"]}, {"stack": "\x00\ud800 File"}])
def test_any_stored_failure_has_one(odd: dict[str, Any]) -> None:
    assert len(fingerprint(odd)) == 16


def test_a_long_stack_is_read_in_reasonable_time() -> None:
    # Patterns that could be slow for texts that almost match.
    for text in ("a" * 64_000, "'" * 64_000, "/a" * 32_000, "at " * 20_000, "| " * 30_000, "1" * 64_000, "a@" * 30_000):
        fingerprint({"type": "T", "message": text, "stack": f'  File "x", line 1, in f\n{text}\n  {text}'})
