"""`help(app.task)` and its like show every option with its meaning, as the reference pages do."""

from __future__ import annotations

import inspect
import pydoc
import re
from collections.abc import Callable
from typing import Any, get_overloads

import pytest

from tenure.app import App
from tenure.task import Task
from tenure.worker import Worker
from tests.architecture.test_library_documented import section

#: The function, the page and the section with its table.
SHOWN: list[tuple[Callable[..., Any], str, str]] = [
    (App.task, "app", "The options of `@app.task`"),
    (Task.options, "app", "Task"),
    (App.worker, "worker", "Options"),
]


def options(function: Callable[..., Any]) -> dict[str, Any]:
    """The options of a function, with their defaults."""
    parameters = inspect.signature(function).parameters.values()
    assert not [each for each in parameters if each.kind is each.VAR_KEYWORD], "help() would not name these options"
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


def explained(function: Callable[..., Any]) -> dict[str, str]:
    """The options that the docstring lists in a column, each with its meaning."""
    return dict(re.findall(r"^(\w+) {2,}(\S.*(?:\n {10,}.*)*)$", inspect.getdoc(function) or "", re.MULTILINE))


def documented(page: str, title: str) -> dict[str, str]:
    """The options that the table of a reference page explains."""
    head = r"\n\| (?:option \| default|`task\.options\(…\)`) \| meaning \|"
    table = re.split(head, section(page, title))[1].split("\n\n")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| `")]
    return {name: row[-1] for row in rows for name in re.findall(r"`(\w+)`", row[0])}


@pytest.mark.parametrize(("function", "page", "title"), SHOWN, ids=lambda each: getattr(each, "__qualname__", None))
def test_help_explains_the_options_that_the_reference_explains(
    function: Callable[..., Any], page: str, title: str
) -> None:
    assert set(explained(function)) == set(options(function))
    assert set(documented(page, title)) == set(options(function))


@pytest.mark.parametrize(("function", "page", "title"), SHOWN, ids=lambda each: getattr(each, "__qualname__", None))
def test_help_names_the_unit_of_every_span(function: Callable[..., Any], page: str, title: str) -> None:
    in_seconds = {name for name, meaning in documented(page, title).items() if re.search(r"\bseconds\b", meaning)}
    assert in_seconds >= (
        {"timeout", "lease"} if function is App.task else {"poll"} if function is App.worker else {"delay"}
    )
    assert [name for name in in_seconds if "seconds" not in explained(function)[name]] == []


def test_the_decorator_has_the_options_that_its_type_has() -> None:
    decorator = options(get_overloads(App.task)[-1])
    assert options(App.task) == decorator


def test_the_worker_of_an_app_has_the_defaults_of_the_worker() -> None:
    by_the_app = {"middleware", "services", "open_service_source", "application", "schedules", "release", "metrics"}
    own = {name: default for name, default in options(Worker).items() if name not in by_the_app}
    of_the_app = {"upkeep": True, "wakeups": True, "sqs": None, "metrics_port": None, "metrics_host": "127.0.0.1"}
    assert options(App.worker) == {**own, **of_the_app}
    assert options(App.run_worker) == {"until_idle": False, **options(App.worker)}


def test_help_prints_the_options() -> None:
    app = App(embedded=False)
    printed = pydoc.plain(pydoc.render_doc(app.task))
    assert "lease: 'float | None' = None" in printed
    assert "lease           seconds that a claim lasts" in printed
