"""Document 002 through the real worker: the stage that a handler names is the stage of its failure."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

import tenure
from tenure.app import App
from tenure.errors import BadInput
from tenure.jobs.job import STAGES, NewJob, Stage
from tenure.settings import Settings
from tests.contracts.reliability import RELIABILITY, letters, shown
from tests.harness import Harness
from tests.http.conftest import serving
from tests.worker import staged
from tests.worker.rounds import Limits
from tests.worker.working import until, working

FIVE: tuple[Stage, ...] = ("fetch", "input", "exec", "output", "commit")


async def ended(app: App, db: Harness, *tickets: tenure.Ticket[Any]) -> list[dict[str, Any]]:
    """The dead letters of these jobs, once a worker has ended them all."""
    async with working(app):
        await until(lambda: all(db.row(ticket.id)["role"] == "done" for ticket in tickets), 60)
    return [letter for ticket in tickets for letter in letters(db, ticket.id)]


def test_the_five_stages_are_those_of_the_contract() -> None:
    assert FIVE == STAGES == RELIABILITY.dead_letters.stages


def failing(app: App, isolation: str) -> Callable[[Stage], Any]:
    """A task that fails at the stage that it is given: on the loop, in a thread, or in a process of its own."""
    if isolation == "process":
        app.tasks["fails"] = staged.fails
        return lambda stage: app._enqueue(staged.fails.call(stage).job)
    if isolation == "loop":

        @app.task(contract="reliability", max_attempts=1)
        async def in_the_loop(ctx: tenure.Context, stage: Stage) -> None:
            with ctx.stage(stage):
                await asyncio.sleep(0)
                raise tenure.TransientError("failed there")

        return in_the_loop.enqueue

    @app.task(contract="reliability", max_attempts=1)
    def in_a_thread(ctx: tenure.Context, stage: Stage) -> None:
        with ctx.stage(stage):
            raise tenure.TransientError("failed there")

    return in_a_thread.enqueue


@pytest.mark.req("S2-43")
@pytest.mark.parametrize("isolation", ["loop", "thread", "process"])
async def test_a_failure_in_each_stage_is_recorded_with_it(app: App, db: Harness, isolation: str) -> None:
    enqueue = failing(app, isolation)
    found = await ended(app, db, *[await enqueue(stage) for stage in FIVE])
    assert [letter["stage"] for letter in found] == list(FIVE)
    assert [letter["last_error"]["stage"] for letter in found] == list(FIVE)
    assert {letter["reason_code"] for letter in found} == {"exhausted_retries"}


@pytest.mark.req("S2-43")
async def test_the_stage_goes_along_through_a_dispatcher(dsn: str, db: Harness) -> None:
    with serving(dsn) as url:
        async with App(dispatcher_url=url, settings=Settings()) as app:
            enqueue = failing(app, "loop")
            found = await ended(app, db, *[await enqueue(stage) for stage in ("fetch", "commit")])
    assert [letter["stage"] for letter in found] == ["fetch", "commit"]


@pytest.mark.req("S2-43")
async def test_stages_that_the_engine_knows_need_no_block(app: App, db: Harness) -> None:
    @app.task(contract="reliability", max_attempts=1)
    async def unstaged() -> None:
        raise tenure.TransientError("somewhere")

    @app.task(contract="reliability", max_attempts=1)
    async def unreadable(page: int) -> None: ...

    @app.task(contract="reliability", max_attempts=1)
    async def unstorable() -> Any:
        return object()

    bad = await app._enqueue(NewJob("unreadable", {"page": "seven"}, contract="reliability"))
    tickets = [await unstaged.enqueue(), bad, await unstorable.enqueue()]
    exec_letter, input_letter = await ended(app, db, *tickets)
    assert (exec_letter["stage"], input_letter["stage"]) == ("exec", "input")
    # A result that cannot be stored is a permanent failure, which this contract keeps on the job.
    row = shown(db, tickets[2].id)
    assert (row["status"], row["last_error"].get("stage")) == ("failed", "output")


async def test_of_nested_blocks_the_innermost_counts_and_a_block_that_ended_does_not(app: App, db: Harness) -> None:
    shared = tenure.TransientError("raised in several jobs")

    @app.task(contract="reliability", max_attempts=1)
    async def nested(ctx: tenure.Context, how: str) -> None:
        with ctx.stage("exec"):
            if how == "inside":
                with ctx.stage("fetch"):
                    raise tenure.TransientError("inside")
            if how == "caught":
                try:
                    with ctx.stage("fetch"):
                        raise OSError("inside")
                except OSError as error:
                    raise tenure.TransientError("caught") from error
            if how == "together":
                async with asyncio.TaskGroup() as group:
                    group.create_task(part(ctx, "commit"))
            if how == "shared":
                with ctx.stage("output"):
                    raise shared
            with ctx.stage("fetch"):
                await asyncio.sleep(0)
        raise shared if how == "shared outside" else tenure.TransientError("after all blocks")

    async def part(ctx: tenure.Context, stage: Stage) -> None:
        with ctx.stage(stage):
            raise tenure.TransientError("in a part")

    ways = {"inside": "fetch", "caught": "fetch", "together": "commit", "shared": "output"}
    found = await ended(app, db, *[await nested.enqueue(how) for how in ways])
    assert [letter["stage"] for letter in found] == list(ways.values())
    after = await ended(app, db, *[await nested.enqueue(how) for how in ("shared outside", "after")])
    assert [letter["stage"] for letter in after] == ["exec", "exec"]
    assert ["stage" in letter["last_error"] for letter in after] == [False, False]


async def test_a_stage_that_is_none_is_refused_by_name_before_its_block(app: App, db: Harness) -> None:
    refused: list[str] = []

    @app.task(contract="reliability", max_attempts=1)
    async def index(ctx: tenure.Context) -> None:
        for name in ("warp", "", "Fetch", None):
            try:
                with ctx.stage(cast("Stage", name)):
                    refused.append("it was entered")
            except BadInput as error:
                refused.append(str(error))

    ticket = await index.enqueue()
    await ended(app, db, ticket)
    assert shown(db, ticket.id)["status"] == "succeeded"
    assert len(refused) == 4
    assert all("fetch, input, exec, output, commit" in text for text in refused)


async def test_a_handler_that_is_ended_from_outside_has_the_stage_that_it_was_at(
    app: App, db: Harness, limits: Limits
) -> None:
    began, free = set[str](), threading.Event()

    @app.task(contract="reliability", max_attempts=1, timeout=3)
    async def in_the_loop(ctx: tenure.Context) -> None:
        with ctx.stage("fetch"):
            began.add("in the loop")
            await asyncio.Event().wait()

    @app.task(contract="reliability", max_attempts=1, timeout=3)
    def in_a_thread(ctx: tenure.Context) -> None:
        with ctx.stage("output"):
            began.add("in a thread")
            free.wait()

    app.tasks["dies"] = staged.dies
    process = await app._enqueue(staged.dies.call("commit").job)
    tickets = [await in_the_loop.enqueue(), await in_a_thread.enqueue(), process]
    try:
        async with working(app):
            await until(lambda: len(began) == 2)
            limits.passes(3)
            await until(lambda: all(db.row(ticket.id)["role"] == "done" for ticket in tickets))
    finally:
        free.set()
    found = [letter for ticket in tickets for letter in letters(db, ticket.id)]
    assert [(letter["stage"], letter["reason_code"]) for letter in found] == [
        ("fetch", "timeout"), ("output", "timeout"), ("commit", "infrastructure_failure"),
    ]  # fmt: skip
