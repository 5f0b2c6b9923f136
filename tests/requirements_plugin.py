"""Records which requirements were proven: `@pytest.mark.req("S0-13")` on a test that ran and passed.

A test that is parametrized by contract proves, with each parameter, only the ids of that contract's own document.
Ids travel as user properties of the test's report, so under xdist the controller sees them all. At the end
of the session they are appended to the file named by $TENURE_PROVEN, which `./dev test` sums over its runs.
"""

import os
from collections.abc import Generator
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
MOST_IDS_ON_ONE_TEST = 4
PROPERTY = "requirement"

#: Each contract and the document whose requirements it implements; `standard` implements none.
DOCUMENTS = {
    "phase27": "S0",
    "dispatcher": "S1",
    "reliability": "S2",
    "simple": "S3",
    "gate_b2": "S4",
    "standard": None,
}

Collected = pytest.Item | pytest.Collector | list[pytest.Item | pytest.Collector] | None


def pytest_configure(config: pytest.Config) -> None:
    """Begin to collect proofs; a worker of xdist only marks its reports."""
    known = frozenset(REQUIREMENTS.read_text().split())
    config.pluginmanager.register(Marking(known), "tenure-requirements-marking")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Proofs(), "tenure-requirements-proofs")


class Marking:
    """Reads the marks while tests are collected; a bad mark is a collection error of its file."""

    def __init__(self, known: frozenset[str]) -> None:
        self.known = known

    @pytest.hookimpl(wrapper=True)
    def pytest_pycollect_makeitem(self) -> Generator[None, Collected, Collected]:
        """Look at each test as it is made, when marks of its class and module are known too."""
        made = yield
        for each in made if isinstance(made, list) else [made]:
            if isinstance(each, pytest.Item):
                each.user_properties.extend((PROPERTY, identifier) for identifier in self.identifiers(each))
        return made

    def identifiers(self, item: pytest.Item) -> list[str]:
        """The ids a test claims to prove; refuses an empty mark, an unknown id and more than four."""
        claimed: set[str] = set()
        for mark in item.iter_markers("req"):
            if not mark.args or mark.kwargs:
                raise pytest.Collector.CollectError(f'{item.name}: write the ids into the mark, req("S0-13")')
            claimed.update(str(argument) for argument in mark.args)
        unknown = claimed - self.known
        if unknown:
            raise pytest.Collector.CollectError(
                f"{item.name}: not in {REQUIREMENTS.name}: {', '.join(sorted(unknown))}"
            )
        # A test that proves everything proves nothing that a reader could check.
        if len(claimed) > MOST_IDS_ON_ONE_TEST:
            raise pytest.Collector.CollectError(
                f"{item.name}: {len(claimed)} requirements on one test, at most {MOST_IDS_ON_ONE_TEST}"
            )
        documents = documents_of(item)
        return sorted(each for each in claimed if documents is None or each[:2] in documents)


def documents_of(item: pytest.Item) -> set[str | None] | None:
    """Return the documents of the contracts that a test's parameters name; None when they name no contract."""
    parameters = getattr(item, "callspec", None)
    if parameters is None:
        return None
    values = [getattr(value, "name", value) for value in parameters.params.values()]
    named = {value for value in (*values, *parameters.id.split("-")) if isinstance(value, str) and value in DOCUMENTS}
    return {DOCUMENTS[name] for name in named} or None


class Proofs:
    """Keeps the ids of the tests that ran and passed, in the one process that sees every report."""

    def __init__(self) -> None:
        self.proven: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the ids of a test whose own body passed; skipped and expected failures prove nothing."""
        if report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
            self.proven.update(str(value) for name, value in report.user_properties if name == PROPERTY)

    def pytest_sessionfinish(self) -> None:
        """Hand the ids on to whoever sums several runs."""
        destination = os.environ.get("TENURE_PROVEN")
        if destination and self.proven:
            with open(destination, "a") as file:
                file.write("".join(f"{identifier}\n" for identifier in sorted(self.proven)))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say how many."""
        terminalreporter.write_line(f"requirements proven in this run: {len(self.proven)}")
