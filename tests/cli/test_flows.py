"""`tenure flows`: list and draw flows."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from xml.etree import ElementTree

import pytest

from tenure.errors import PermanentError
from tenure.jobs.flow import FlowMade, NewFlow, NewNode
from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tests.cli.conftest import Asking
from tests.harness import Harness

T = TypeVar("T")


def on_store(dsn: str, call: Callable[[Store], Awaitable[T]]) -> T:
    """The result of this call on a store."""

    async def run() -> T:
        async with Store.open(dsn, connections=1) as store:
            return await call(store)

    return asyncio.run(run())


def node(name: str, *after: str, contract: str = "standard", **more: Any) -> NewNode:
    """A node whose job has its name as type."""
    return NewNode(name, NewJob(name, contract=contract), after=after, **more)


def created(dsn: str, *nodes: NewNode, name: str = "nightly", **more: Any) -> FlowMade:
    """A flow of these nodes."""
    return on_store(dsn, lambda store: store.flows.create(NewFlow(name, nodes, **more), created_by="ann"))


def run(dsn: str, ending: Callable[[Store, Any], Awaitable[Any]], *, limit: int = 100) -> Sequence[str]:
    """Claim what is due and end it so; the types of these jobs."""

    async def once(store: Store) -> Sequence[str]:
        jobs = await store.claim(worker="w", limit=limit)
        for job in jobs:
            await store.start(job.held)
            await ending(store, job)
        return [job.type for job in jobs]

    return on_store(dsn, once)


async def succeed(store: Store, job: Any) -> None:
    await store.succeed(job.held, [1, 2, 3] if job.type == "extract" else None)


async def fail(store: Store, job: Any) -> None:
    await store.fail(job.held, PermanentError("no"))


ETL = (
    node("extract"),
    NewNode("transform", NewJob("transform"), inputs={"row": "extract"}, each="row"),
    NewNode("load", NewJob("load"), inputs={"rows": "transform"}),
)


def test_an_empty_list_says_so(ask: Asking) -> None:
    done = ask.run("flows", "list")
    assert (done.stdout, done.stderr) == ("", "no flow matches\n")
    assert ask.said("flows", "list") == {"flows": [], "next": None}


def test_the_list_shows_how_far_each_flow_is(ask: Asking) -> None:
    first = created(ask.dsn, *ETL)
    second = created(ask.dsn, node("a"), node("b", "a"), name="hourly", tenant_id="acme")
    run(ask.dsn, succeed, limit=1)
    head, newer, older = ask.text("flows", "list").splitlines()
    assert head.split()[:5] == ["flow", "name", "state", "ended", "failed"]
    assert newer.split()[:5] == [str(second.id), "hourly", "running", "0/2", "acme"]
    assert older.split()[:5] == [str(first.id), "nightly", "running", "1/6", "default"]
    assert older.endswith("ann")
    for options, ids in (
        (["--name", "nightly"], [first.id]),
        (["--tenant", "acme"], [second.id]),
        (["--state", "failed"], []),
        (["--after", str(second.id)], [first.id]),
    ):
        assert [one["id"] for one in ask.said("flows", "list", *options)["flows"]] == [str(one) for one in ids]


def test_a_full_page_names_the_next_one(ask: Asking) -> None:
    made = [created(ask.dsn, node("a"), name="two words") for _ in range(3)]
    done = ask.run("flows", "list", "--limit", "2", "--name", "two words")
    assert done.stderr == (
        f"there may be more. Next: tenure flows list --name 'two words' --limit 2 --after {made[1].id}\n"
    )
    said = ask.said("flows", "list", "--limit", "2")
    assert said["next"] == str(made[1].id)
    rest = ask.said("flows", "list", "--limit", "2", "--after", said["next"])
    assert [one["id"] for one in rest["flows"]] == [str(made[0].id)]
    assert rest["next"] is None


def test_wrong_filters_are_refused(ask: Asking) -> None:
    code, message = ask.refused("flows", "list", "--state", "broken")
    assert code == "E-BAD-INPUT"
    assert "running, cancelling, succeeded, failed, cancelled" in message
    assert ask.refused("flows", "list", "--after", "x")[0] == "E-BAD-INPUT"


def test_show_draws_a_running_flow(ask: Asking, db: Harness) -> None:
    made = created(ask.dsn, *ETL, node("alarm", cleanup=True))
    run(ask.dsn, succeed, limit=1)
    run(ask.dsn, succeed, limit=1)
    db.sql("update tenure.flow set created_at = now() - interval '1 minute'")
    db.sql("update tenure.flow_node set started_at = now() - interval '90 s', finished_at = now() - interval '30 s' "
           "where name = 'extract'")  # fmt: skip
    lines = ask.text("flows", "show", str(made.id)).splitlines()
    assert lines[0].startswith(f"flow {made.id}, nightly: running for 1")
    assert lines[0].endswith(" min; 2 of 7 nodes ended")
    assert lines[2].split() == ["✓", "extract", "1", "min", "succeeded,", "job", str(made.jobs["extract"])]
    assert lines[3].split()[:4] == ["●", "transform", "×", "3"]
    assert lines[3].endswith("1 succeeded, 2 queued")
    assert lines[4].split() == ["○", "load", "waits", "for", "transform", "×", "3"]
    assert lines[6].split()[:2] == ["○", "alarm"]
    assert "critical path: " in lines[8]
    assert lines[8].endswith("expected: extract → transform → load")


def test_show_says_all_of_it_in_json(ask: Asking) -> None:
    made = created(ask.dsn, *ETL)
    run(ask.dsn, succeed, limit=1)
    said = ask.said("flows", "show", str(made.id))
    assert (said["id"], said["state"], said["node_count"], said["open_count"], said["failed_count"]) == (
        str(made.id), "running", 6, 5, 0,
    )  # fmt: skip
    assert [one["name"] for one in said["nodes"]] == [
        "extract", "transform", "transform[0]", "transform[1]", "transform[2]", "load",
    ]  # fmt: skip
    first, mapped, member, *_, last = said["nodes"]
    assert (first["state"], first["job_state"], first["job_id"]) == ("succeeded", "succeeded", first["id"])
    assert (mapped["is_mapped"], mapped["job_id"], mapped["parents"]) == (True, None, [first["id"]])
    assert (member["part_of"], member["job_state"]) == (mapped["id"], "queued")
    assert (last["state"], last["open"], last["started_at"]) == ("waiting", 1, None)


def test_show_writes_a_picture(ask: Asking) -> None:
    made = created(ask.dsn, *ETL)
    done = ask.run("flows", "show", str(made.id), "--svg", "flow.svg")
    assert (done.returncode, done.stderr) == (0, "wrote flow.svg\n")
    assert "extract" in done.stdout
    root = ElementTree.fromstring((ask.place / "flow.svg").read_text(encoding="utf-8"))
    texts = [each.text for each in root.iter() if each.tag.endswith("}text")]
    assert {"extract", "transform × each item", "load"} <= set(texts)
    code, message = ask.refused("flows", "show", str(made.id), "--svg", str(Path("none") / "flow.svg"))
    assert code == "E-BAD-INPUT"
    assert message == "cannot write none/flow.svg: No such file or directory. Next: choose another file"


def test_without_utf_8_the_drawing_is_ascii(ask: Asking) -> None:
    made = created(ask.dsn, *ETL)
    done = subprocess.run(
        [sys.executable, "-m", "tenure", "flows", "show", str(made.id)],
        env={**os.environ, "DATABASE_URL": ask.dsn, "PYTHONIOENCODING": "ascii"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.isascii()
    assert "*  extract" in done.stdout


def test_flows_are_cancelled_and_what_goes_on_is_named(ask: Asking, db: Harness) -> None:
    first = created(ask.dsn, node("a"), node("b", contract="phase27"), node("c", "a", "b"))
    second = created(ask.dsn, *ETL)
    done = ask.run("flows", "cancel", str(first.id), str(second.id), "404", "--reason", "wrong day", "--mode", "hard")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"flow {first.id}: cancelling; 1 waiting nodes and 1 jobs cancelled or asked to stop",
        f"flow {second.id}: cancelled; 2 waiting nodes and 1 jobs cancelled or asked to stop",
    ]
    left, refused = done.stderr.splitlines()
    assert left.startswith("left: node b goes on: ")
    assert refused == "FLOW_NOT_FOUND: no flow has the id 404. Next: tenure flows list"
    assert {row["reason"] for row in db.sql("select reason from tenure.event")} == {"wrong day"}
    (said,) = ask.said("flows", "cancel", str(first.id))
    assert (said["flow"]["state"], said["waiting_count"], said["job_count"], [*said["left"]]) == (
        "cancelling", 0, 0, ["b"],
    )  # fmt: skip


def test_flows_are_resumed_from_the_nodes_that_failed(ask: Asking) -> None:
    made = created(ask.dsn, node("a"), node("b"), node("c", "a", "b"), on_failure="skip")
    run(ask.dsn, fail)
    assert ask.said("jobs", "why", str(made.jobs["c"]))["why"] == [
        f"Job {made.jobs['c']} is node c of flow {made.id} (nightly), and was skipped: a node of the flow ended badly."
    ]
    text = ask.text("flows", "resume", str(made.id), "--node", "b")
    again = ask.said("flows", "show", str(made.id))["nodes"][1]["job_id"]
    assert text.splitlines() == [
        f"flow {made.id}: running; runs b (job {again}) again", f"Next: tenure flows show {made.id}",
    ]  # fmt: skip
    run(ask.dsn, succeed)
    (said,) = ask.said("flows", "resume", str(made.id))
    assert (said["flow"]["state"], [*said["jobs"]], said["waiting_count"]) == ("running", ["a"], 1)
    code, message = ask.refused("flows", "resume", str(made.id))
    assert (code, "no node ended badly" in message) == ("FLOW_CONFLICT", True)
    assert ask.refused("flows", "resume", str(made.id), "404", "--node", "a")[0] == "E-BAD-INPUT"
    done = ask.run("flows", "resume", "404", "--json")
    assert (done.returncode, json.loads(done.stdout)[0]["refused"]["code"]) == (1, "FLOW_NOT_FOUND")


def test_why_of_a_node_names_the_parents_that_it_waits_for(ask: Asking) -> None:
    parents = [node(f"p{n}") for n in range(7)]
    made = created(ask.dsn, *parents, node("last", *(one.name for one in parents)), node("end", "last"))
    run(ask.dsn, succeed, limit=1)
    text = ask.text("jobs", "why", str(made.jobs["last"])).splitlines()
    named = ", ".join(f"p{n} (queued, job {made.jobs[f'p{n}']})" for n in range(1, 6))
    assert text == [
        f"Job {made.jobs['last']} is node last of flow {made.id} (nightly) and waits for {named} and 1 more.",
        "1 of its 7 parents have ended.",
        f"Next: tenure flows show {made.id}",
    ]
    said = ask.said("jobs", "why", str(made.jobs["end"]))
    assert (said["state"], said["role"]) == ("waiting", "waiting")
    assert said["why"] == [
        f"Job {made.jobs['end']} is node end of flow {made.id} (nightly) and waits for last (waiting)."
    ]
    for verb in ("show", "events", "cancel"):
        code, message = ask.refused("jobs", verb, str(made.jobs["end"]))
        assert (code, "it waits for its parents" in message) == ("WAITING_FOR_PARENTS", True)
    ask.run("flows", "cancel", str(made.id))
    said = ask.said("jobs", "why", str(made.jobs["end"]))
    assert (said["role"], said["next"]) == (
        "done", [f"tenure flows show {made.id}", f"tenure flows resume {made.id}"],
    )  # fmt: skip


@pytest.mark.parametrize("verb", ["show", "cancel", "resume"])
def test_a_flow_that_does_not_exist_is_refused(ask: Asking, verb: str) -> None:
    assert ask.refused("flows", verb, "404") == (
        "FLOW_NOT_FOUND", "no flow has the id 404. Next: tenure flows list",
    )  # fmt: skip
    assert ask.refused("flows", verb, "x")[0] == "E-BAD-INPUT"
