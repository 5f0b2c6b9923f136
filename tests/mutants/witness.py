"""A pytest plugin: writes down which tests ran on which sources, and by which errors they failed.

An exit code does not tell an assertion that failed from a file that could not be imported.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

import tenure

#: In the environment of a run: the sources that must be under test, and the file that is written.
SOURCES, TESTIMONY = "TENURE_MUTANT_SOURCES", "TENURE_MUTANT_TESTIMONY"


def pytest_sessionstart() -> None:
    """Refuse to test any sources but those that were meant."""
    found = Path(str(tenure.__file__)).resolve()
    if not found.is_relative_to(Path(os.environ[SOURCES]).resolve()):
        pytest.exit(f"tenure was imported from {found}", returncode=3)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note how each phase of a test ended."""
    report = yield
    error = call.excinfo.value if call.excinfo else None
    where = str(call.excinfo.traceback[-1].path) if call.excinfo else None
    errors = [_name(each) for each in _chain(error)]
    _say(node=item.nodeid, phase=call.when, outcome=report.outcome, where=where, errors=errors)
    return report


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note a file that could not be read."""
    if report.failed:
        _say(node=report.nodeid, phase="collect", outcome="failed", where=None, errors=[])


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _name(error: BaseException) -> dict[str, str | None]:
    kinds = " ".join(f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__)
    words = str(error).split("\n")
    return {"kinds": kinds, "sqlstate": getattr(error, "sqlstate", None), "text": words[0][:200]}


def _say(**what: object) -> None:
    # One short write each: the processes of one run share the file.
    with open(os.environ[TESTIMONY], "a") as file:
        file.write(json.dumps(what) + "\n")
