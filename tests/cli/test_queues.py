"""`tenure queues` as a person runs it: look, pause, ask why nothing runs, resume."""

from __future__ import annotations

import json
import os
import pwd
import re

import pytest

from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tests.architecture.test_documented import commands
from tests.cli.conftest import Asking
from tests.harness import Harness

ME = pwd.getpwuid(os.getuid()).pw_name


async def test_the_list_says_what_stands_in_each_queue_and_who_paused_it(
    store: Store, ask: Asking, db: Harness
) -> None:
    done = ask.run("queues", "list")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "no queue has a live job, and none is paused\n"
    await store.enqueue_many([NewJob("t", queue="mail")] * 3)
    await store.enqueue(NewJob("t", queue="mail", delay_ms=60_000))
    await store.claim(queues=["mail"], worker="w")
    await store.queues.pause("mail", actor="ada", reason="down")
    db.sql("update tenure.job set due_at = now() - interval '3 minutes' where role = 'ready' and due_at < now()")
    done = ask.run("queues", "list")
    assert done.stderr == "queue mail is paused. Next: tenure queues resume mail\n"
    head, row = done.stdout.splitlines()
    columns = ["queue", "ready", "delayed", "waiting", "held", "quarantined", "oldest ready", "paused"]
    assert re.split(r"  +", head) == columns
    assert re.fullmatch(r"mail +2 +1 +0 +1 +0 +3\S* min +by ada since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC: down", row)
    (said,) = ask.said("queues", "list")["queues"]
    assert 180 <= said.pop("oldest_ready_seconds") < 240
    assert re.fullmatch(r"\d{4}-.*Z", said["paused"].pop("at"))
    assert said == {
        "name": "mail", "ready": 2, "delayed": 1, "waiting": 0, "held": 1, "quarantined": 0, "at_least": [],
        "paused": {"by": "ada", "reason": "down"}, "unserved_types": [],
    }  # fmt: skip


async def test_pause_and_resume_say_what_they_did_and_what_is_next(store: Store, ask: Asking) -> None:
    await store.enqueue_many([NewJob("t", queue="slow mail")] * 2)
    await store.claim(queues=["slow mail"], worker="w")
    assert ask.text("queues", "pause", "slow mail", "--reason", "down") == (
        "queue slow mail is paused; jobs that stay unclaimed: 1, jobs that are held and go on: 1\n"
        "Next: tenure queues resume 'slow mail'\n"
    )
    assert await store.claim(queues=["slow mail"], worker="w") == []
    again = ask.text("queues", "pause", "slow mail", "--actor", "bob")
    assert again.startswith(f"queue slow mail was paused already: by {ME} since ")
    assert ask.text("queues", "resume", "slow mail") == "queue slow mail is resumed\n"
    assert ask.text("queues", "resume", "slow mail") == "queue slow mail is not paused\n"
    assert len(await store.claim(queues=["slow mail"], worker="w")) == 1


async def test_programs_are_told_who_paused_and_whether_it_was_this_call(ask: Asking) -> None:
    said = ask.said("queues", "pause", "mail", "--actor", "ada", "--reason", "down")
    assert (said["queue"], said["new"], said["paused"]["by"], said["paused"]["reason"]) == ("mail", True, "ada", "down")
    assert ask.said("queues", "pause", "mail", "--actor", "bob") == {**said, "new": False}
    assert ask.said("queues", "resume", "mail") == {"queue": "mail", "resumed": True}
    assert ask.said("queues", "resume", "mail") == {"queue": "mail", "resumed": False}


def test_pausing_a_queue_without_jobs_asks_to_check_its_name(ask: Asking) -> None:
    assert "no live job is in it now: check the name if that surprises you" in ask.text("queues", "pause", "mial")


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_name_that_is_none_is_refused(ask: Asking, db: Harness, command: str) -> None:
    assert ask.refused("queues", command, "") == ("E-BAD-INPUT", "queue must be a non-empty string, not ''")
    assert db.value("select count(*) from tenure.queue") == 0


async def test_why_says_that_the_queue_is_paused_by_whom_and_how_to_resume_it(store: Store, ask: Asking) -> None:
    job_id = str((await store.enqueue(NewJob("t", queue="mail"))).job_id)
    later = str((await store.enqueue(NewJob("t", queue="mail", delay_ms=60_000))).job_id)
    await store.queues.pause("mail", actor="ada", reason="the server is down")
    for asked in (job_id, later):
        text = ask.text("jobs", "why", asked)
        assert re.search(r"^Queue mail is paused since .* by ada \(the server is down\): no claim takes", text, re.M)
        assert "\nNext: tenure queues resume mail\n" in text
        assert "the next claim of contract" not in text
    assert json.loads(ask.text("jobs", "why", job_id, "--json"))["next"][0] == "tenure queues resume mail"
    assert re.search(r"^  queue +mail \(paused\), priority 5", ask.text("jobs", "show", job_id), re.M)
    assert "queues resume" in commands()
    await store.queues.resume("mail", actor="ada")
    assert "paused" not in ask.text("jobs", "why", job_id)
