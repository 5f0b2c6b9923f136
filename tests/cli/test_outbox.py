"""`tenure outbox` as a person runs it: look, mend, try again."""

from __future__ import annotations

import re

import pytest

from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tests.cli.conftest import Asking
from tests.harness import Harness

URL = "https://queue.example/1/mail"


async def test_the_list_names_the_queues_what_waits_and_what_to_do(store: Store, ask: Asking, db: Harness) -> None:
    done = ask.run("outbox", "list")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "no queue is published. Next: set TENURE_SQS_QUEUES=QUEUE=ADDRESS for upkeep\n"
    await store.outbox.publish({"the mail": URL})
    done = ask.run("outbox", "list")
    assert done.stderr == "every wake-up is published\n"
    made = await store.enqueue(NewJob("t", contract="dispatcher", queue="the mail"))
    (taken,) = await store.outbox.take(["the mail"], limit=1, hold_s=1)
    await store.outbox.mark_failed([taken.id], "no such queue")
    db.sql("update tenure.outbox set due_at = due_at - interval '3 minutes'")
    db.sql("update tenure.published_queue set seen_at = seen_at - interval '4 minutes'")
    done = ask.run("outbox", "list")
    head, queue, _, columns, wakeup = done.stdout.splitlines()
    assert re.split(r"  +", head) == ["queue", "due", "oldest", "publisher seen", "address"]
    assert re.fullmatch(rf"the mail  1 +3\S* min +4\S* min ago +{URL}", queue)
    assert re.split(r"  +", columns) == ["wake-up", "job", "queue", "publish at (UTC)", "tries", "last error"]
    assert re.split(r"  +", wakeup)[:3] == [str(taken.id), str(made.job_id), "the mail"]
    assert wakeup.endswith("1      no such queue")
    unseen, failed = done.stderr.splitlines()
    run = re.escape("Next: run tenure serve or tenure upkeep with TENURE_SQS_QUEUES")
    assert re.fullmatch(rf"queue the mail: no publisher for 4\S* min\. {run}", unseen)
    assert failed == "queue the mail: no such queue. Next: mend it, then tenure outbox retry"
    (told,) = ask.said("outbox", "list")["queues"]
    assert (told["queue"], told["due"], told["is_paused"], told["last_error"]) == (
        "the mail",
        1,
        False,
        "no such queue",
    )


async def test_the_list_names_a_paused_queue(store: Store, ask: Asking) -> None:
    await store.outbox.publish({"the mail": URL})
    await store.enqueue(NewJob("t", contract="dispatcher", queue="the mail"))
    await store.queues.pause("the mail", actor="ada")
    done = ask.run("outbox", "list")
    assert re.match(r"the mail  1 +paused", done.stdout.splitlines()[1])
    assert done.stderr == "queue the mail is paused. Next: tenure queues resume 'the mail'\n"


@pytest.mark.parametrize("chosen", [[], ["--queue", "mail"]])
async def test_retry_makes_failed_wake_ups_due_now(store: Store, ask: Asking, chosen: list[str]) -> None:
    assert ask.text("outbox", "retry", *chosen) == "no wake-up waits because publishing it failed\n"
    await store.outbox.publish({"mail": URL})
    await store.enqueue(NewJob("t", contract="dispatcher", queue="mail"))
    (taken,) = await store.outbox.take(["mail"], limit=1, hold_s=60)
    assert await store.outbox.take(["mail"], limit=1, hold_s=60) == []
    assert ask.said("outbox", "retry", "--queue", "other") == {"retried": 0}
    assert ask.text("outbox", "retry", *(chosen or [str(taken.id)])) == "1 wake-ups are due now\n"
    assert [one.id for one in await store.outbox.take(["mail"], limit=1, hold_s=60)] == [taken.id]
