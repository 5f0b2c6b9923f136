"""What people import is documented: every public member, option, hook and count of the app and its worker."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args, get_overloads

import pytest

import tenure
from tenure import testing
from tenure.app import App
from tenure.app_datasets import AppDataset, AppDatasets, StoredGeneration
from tenure.app_flows import AppFlows
from tenure.context import Context
from tenure.dataset import DatasetReader, Event, Input, Output
from tenure.flow import FlowGraph, Group, Node
from tenure.jobs.arguments.node_result import NodeResult
from tenure.jobs.dataset import Dataset, Generation, Pin, RolledBack, StoredOutput, StoredPointer, Subscription, Switch
from tenure.jobs.flow import (
    ON_FAILURE,
    CancelledFlow,
    Flow,
    FlowMade,
    FlowNode,
    FlowState,
    NodeState,
    ResumedFlow,
)
from tenure.jobs.job import Job
from tenure.middleware import Middleware
from tenure.task import Task, Ticket
from tenure.worker import Worker
from tests.architecture.test_documented import REFERENCE, page

SOURCE = Path(tenure.__file__).parent


def untold(names: Iterable[str], text: str) -> list[str]:
    """The names that do not stand in the text as code: alone, behind a dot, or as a call."""
    told = set(re.findall(r"`(?:@?await )?@?(?:\w+\.)*(\w+)[`(]", text))
    return sorted(set(names) - told)


def section(name: str, title: str) -> str:
    """The text below a heading, up to the next."""
    return page(name).split(f"\n## {title}\n")[1].split("\n## ")[0]


def members(kind: type) -> list[str]:
    """What an object of this class has for others: methods, fields, and what is set on it."""
    made = re.findall(r"self\.(\w+)(?:: [^=\n]+)? =", inspect.getsource(kind))
    names = [*vars(kind), *getattr(kind, "__annotations__", {}), *made]
    return sorted({name for name in names if not name.startswith("_")})


def keywords(function: Callable[..., Any]) -> list[str]:
    """What can be given by name."""
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [each.name for each in inspect.signature(function).parameters.values() if each.kind in kinds][1:]


def task_options() -> list[str]:
    """The options of `@app.task(…)`, as its type says them."""
    return sorted({name for each in get_overloads(App.task) for name in keywords(each)} - {"function"})


def counted() -> set[str]:
    """What a worker counts, as its code says it."""
    code = "".join(path.read_text(encoding="utf-8") for path in (SOURCE / "worker").glob("*.py"))
    return {name for where in re.findall(r"\bcounts\[(.*?)\] \+=", code) for name in re.findall(r'"([^"]+)"', where)}


def test_every_public_name_is_documented() -> None:
    assert [name for name in tenure.__all__ if f"`tenure.{name}`" not in section("app", "Names")] == []


@pytest.mark.parametrize(
    ("kind", "title"),
    [(App, "App"), (Task, "Task"), (Ticket, "Task"), (Context, "Context"), (Middleware, "Middleware"), (Job, "Job")],
)
def test_every_member_is_documented(kind: type, title: str) -> None:
    wanted = members(kind)
    assert len(wanted) > 1
    assert untold(wanted, section("app", title)) == []


def test_every_member_of_flows_is_documented() -> None:
    for kind, title in ((FlowGraph, "Building"), (Node, "Building"), (NodeResult, "Building"), (Group, "Building")):
        assert untold(members(kind), section("flows", title)) == [], kind
    assert {"result", "cancel", "resume"} <= set(members(AppFlows))
    values = {name for value in (FlowMade, Flow, FlowNode, CancelledFlow, ResumedFlow) for name in value._fields}
    assert untold([*members(AppFlows), *values], section("flows", "Started flows")) == []
    states = {*get_args(FlowState), *get_args(NodeState)}
    assert untold(states, section("flows", "Started flows")) == []
    assert untold(ON_FAILURE, section("flows", "When a node ends badly")) == []


def test_every_option_of_flows_is_documented_and_in_help() -> None:
    table = section("flows", "Building").split("| option | default | meaning |")[1]
    for function in (App.flow, FlowGraph.node, FlowGraph.map, FlowGraph.cleanup):
        options = [name for name in keywords(function) if name != "call"]
        assert untold(options, table) == []
        explained = re.findall(r"^(\w+) {2,}\S", inspect.getdoc(function) or "", re.MULTILINE)
        assert [name for name in options if name not in explained] == (["name"] if function is App.flow else [])


def test_every_member_of_datasets_is_documented() -> None:
    for kind, title in (
        (AppDataset, "One dataset"), (StoredGeneration, "What a generation contains"), (AppDatasets, "Several at once"),
        (DatasetReader, "What a generation contains"), (Input, "In a handler"), (Output, "In a handler"),
        (Event, "Events"),
    ):  # fmt: skip
        assert members(kind), kind
        assert untold(members(kind), section("datasets", title)) == [], kind
    values = (Dataset, Generation, Pin, StoredPointer, StoredOutput, Switch, RolledBack, Subscription)
    assert untold({name for value in values for name in value._fields}, section("datasets", "Values")) == []
    for function, title in ((App.dataset, "One dataset"), (App.on, "Events")):
        parameters = inspect.signature(function).parameters.values()
        options = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
        assert untold(options, section("datasets", title)) == []
        explained = re.findall(r"^(\w+) {2,}\S", inspect.getdoc(function) or "", re.MULTILINE)
        assert explained == options


def test_every_option_is_documented() -> None:
    assert {"queue", "on_exhausted", "isolation"} <= set(task_options())
    assert untold(task_options(), section("app", "The options of `@app.task`")) == []
    assert untold(keywords(Task.options), section("app", "Task")) == []
    assert untold(keywords(App.__init__), section("app", "App")) == []


def test_every_part_of_the_worker_is_documented() -> None:
    given = {"tasks", "open_source"}  # by the app
    options = {*keywords(Worker.__init__), *keywords(App.worker)} - given
    assert {"grace", "upkeep", "wakeups"} <= options
    assert untold(options, section("worker", "Options")) == []
    assert untold(members(Worker), section("worker", "Worker")) == []


def test_every_count_of_the_worker_is_documented_and_no_other() -> None:
    found = counted()
    assert {"claimed", "handed back", "retried", "failed"} <= found
    table = section("worker", "Worker").split("| `worker.counts` | how many jobs |\n|---|---|\n")[1]
    assert set(re.findall(r"^\| `([\w ]+)` \|", table, flags=re.MULTILINE)) == found


def test_every_tool_for_tests_is_documented() -> None:
    public = [name for name, each in vars(testing).items() if getattr(each, "__module__", "") == testing.__name__]
    tools = [name for name in public if not name.startswith("_") and inspect.isfunction(getattr(testing, name))]
    assert {"drain", "mark_database", "use_database"} <= set(tools)
    assert untold(tools, section("app", "Testing")) == []


def test_every_logger_is_documented() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    loggers = set(re.findall(r'getLogger\("(tenure[^"]*)"\)', code))
    assert "tenure.worker" in loggers
    pages = "".join(path.read_text(encoding="utf-8") for path in REFERENCE.glob("*.md"))
    assert sorted(logger for logger in loggers if f"`{logger}`" not in pages) == []


def test_every_code_that_a_worker_gives_a_failure_is_documented() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (SOURCE / "worker").glob("*.py"))
    codes = set(re.findall(r'\bcode="(\w+)"', code)) | set(re.findall(r'^[A-Z_]+ = "([A-Z_]+)"', code, re.MULTILINE))
    assert {"TIMEOUT", "PROCESS_DIED"} <= codes
    assert untold(codes, section("worker", "What it writes to a failed job")) == []


def test_the_checks_find_what_is_missing() -> None:
    assert untold(["there", "call", "gone"], "`await app.there` and `task.call(…)`, gone") == ["gone"]
    assert "_port" not in members(Context)
    assert {"job", "last_checkpoint", "effect_sync"} <= set(members(Context))
