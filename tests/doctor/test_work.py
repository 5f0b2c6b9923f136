"""Doctor finds work that stands still: jobs without workers, and what upkeep has not done."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from tenure.jobs.finding import FINDINGS
from tenure.jobs.job import NewJob
from tenure.jobs.live_worker import LiveWorker
from tenure.postgres.store import Store
from tests.doctor.conftest import Examined
from tests.harness import Harness

WORKER = LiveWorker("w1", ("mail",), ("standard",), ("send",), version="1.0")
#: Rows that stage work which nobody does.
STAGED = {
    "schedules-behind": (
        "insert into tenure.schedule "
        "(fire_at, next_at, in_code, application, name, tenant_id, fingerprint, declaration) "
        "values (now() - interval '2 min', now() - interval '2 min', true, 'shop', 'nightly', 'default', 'x', '{}')",
        "schedule nightly is due since 2",
    ),
    "flows-behind": (
        "insert into tenure.flow_end (flow_id, job_id, node, at, outcome, state) "
        "values (7, 1, 1, now() - interval '2 min', 'failed', 'dead')",
        "flow 7 does not go on",
    ),
    "rollback-unfinished": (
        "insert into tenure.dataset_switch (at, undoes, kind, tenant_id, actor) "
        "values (now() - interval '2 min', 1, 'rollback', 'default', 'ada')",
        "has not cancelled the jobs",
    ),
    "subscription-fails": (
        "insert into tenure.dataset_subscription (dataset_id, contract, type, argument, failures, last_error, job) "
        "values (1, 'standard', 'index', 'event', 3, 'no such argument', '{}')",
        "do not reach task index: no such argument",
    ),
    "publisher-missing": (
        "insert into tenure.published_queue (queue, url, fill_end, seen_at) "
        "values ('mail', 'https://q', 0, now() - interval '5 min')",
        "no process publishes the wake-ups of queue mail for 5",
    ),
    "outbox-behind": (
        "insert into tenure.published_queue (queue, url, fill_end) values ('mail', 'https://q', 0);"
        "insert into tenure.outbox (job_id, contract, queue, publish_at, due_at, last_error) "
        "values (1, 'dispatcher', 'mail', now(), now() - interval '2 min', 'access denied')",
        "1 wake-ups of queue mail are not published, the oldest for 2",
    ),
    "upkeep-not-running": (
        "insert into tenure.alarm_round (at) values (now() - interval '6 min')",
        "upkeep looked for alarms 6",
    ),
    "alarm-firing": (
        "insert into tenure.alarm (since, seen_at, fired_at, hold_s, value, threshold, kind, tenant_id, subject, "
        "severity, summary, next) values (now(), now(), now(), 0, 1, 1, 'retrying-share', 'acme', '', 'P2', "
        "'12 of 20 wait', 'tenure jobs list')",
        "12 of 20 wait",
    ),
    "alarm-not-sent": (
        "insert into tenure.alarm (since, seen_at, fired_at, hold_s, value, threshold, kind, tenant_id, subject, "
        "severity, summary, next) values (now(), now(), now(), 0, 1, 1, 'test', '', '', 'P3', 'a test', 'nothing');"
        "insert into tenure.alarm_notice (alarm_id, next_at, change, sink, error) "
        "select id, now(), 'fired', 'webhook', 'it answered 500' from tenure.alarm",
        "the webhook does not take a notice",
    ),
    "worker-silent": (
        "insert into tenure.worker (name, queues, contracts, busy, pid, host, last_seen_at) "
        "values ('images-2', '{images}', '{}', 1, 4711, 'box', now() - interval '25 s')",
        "worker images-2 of images on box pid 4711 was last seen 25",
    ),
    "worker-lost": (
        "insert into tenure.past_worker (name, queues, busy, ending, started_at, last_seen_at) "
        "values ('images-2', '{images}', 1, 'lost', now() - interval '1 h', now() - interval '9 min')",
        "It ran 1 job then.",
    ),
    "clock-went-back": (
        "insert into tenure.worker (name, queues, contracts, last_seen_at) "
        "values ('w', '{}', '{}', now() + interval '1 h')",
        "its clock went back",
    ),
}  # fmt: skip


@pytest.mark.parametrize("code", STAGED)
async def test_work_that_nobody_does_is_found(examined: Examined, db: Harness, code: str) -> None:
    rows, named = STAGED[code]
    assert code not in await examined()
    db.sql(rows)
    found = (await examined())[code]
    assert named in found.summary
    assert found.severity == FINDINGS[code][0]


async def test_jobs_without_a_worker_and_of_unknown_types_are_found(
    examined: Examined, store: Store, db: Harness
) -> None:
    await store.enqueue_many(
        [NewJob("send", queue="mail"), NewJob("sned", queue="mail"), NewJob("t", queue="the rest")]
    )
    assert not {"no-worker", "type-unknown"} & set(await examined()), "workers may be restarting"
    db.sql("update tenure.job set due_at = now() - interval '1 min'")
    await store.workers.enter([WORKER])
    found = await examined()
    assert found["type-unknown"].summary.startswith("no live worker knows type sned (seen workers: w1): 1 or more jobs")
    assert found["no-worker"].next == "tenure worker APP --queues 'the rest'"
    assert found["no-worker"].details["queue"] == "the rest"


async def test_workers_of_several_versions_are_noted(examined: Examined, store: Store) -> None:
    await store.workers.enter([WORKER])
    assert "versions-mixed" not in await examined()
    await store.workers.enter([dataclasses.replace(WORKER, name="w2", version="2.0")])
    found = (await examined())["versions-mixed"]
    assert (found.severity, found.details["versions"]) == ("note", {"1.0": 1, "2.0": 1})


async def test_a_paused_queue_is_noted_where_jobs_wait(examined: Examined, store: Store) -> None:
    await store.queues.pause("mail", actor="ada", reason="a release")
    assert "queue-paused" not in await examined()
    await store.enqueue(NewJob("send", queue="mail"))
    found = (await examined())["queue-paused"]
    assert "paused by ada" in found.summary
    assert "(a release); 1 jobs wait in it" in found.summary
    assert found.next == "tenure queues resume mail"


async def test_jobs_that_claims_skip_are_found(examined: Examined, store: Store, db: Harness) -> None:
    await store.enqueue_many([NewJob("t"), NewJob("t")])
    db.sql("update tenure.job set quarantined_at = now(), quarantine_reason = 'no partition'")
    found = (await examined())["jobs-quarantined"]
    assert (found.summary, found.next) == (
        "2 jobs cannot be logged, and claims skip them: no partition",
        "tenure verify",
    )


@pytest.mark.parametrize(
    ("contract", "role", "change", "code"),
    [
        ("standard", "active", "lease_expires_at = now() - interval '2 min', state = 'running'", "reaper-behind"),
        ("gate_b2", "settling", "updated_at = now() - interval '2 min', state = 'dlq_pending'", "settling-behind"),
        ("dispatcher", "waiting", "due_at = now() - interval '2 min', state = 'Failed'", "promotion-behind"),
    ],
    ids=["expired", "settling", "waiting"],
)
async def test_work_that_upkeep_has_not_done_is_found(
    examined: Examined, store: Store, db: Harness, contract: str, role: str, change: str, code: str
) -> None:
    made = await store.enqueue(NewJob("t", contract=contract))
    assert code not in await examined()
    db.sql(f"update tenure.job set seq = 1, role = %s, {change}", role)
    findings = await examined()
    assert code in findings
    found = findings[code]
    assert found.details["job_id"] == str(made.job_id)
    assert ", the oldest for 2" in found.summary


async def test_a_clock_that_differs_from_this_machines_is_found(examined: Examined, db: Harness) -> None:
    for away, how in ((timedelta(minutes=5), "behind"), (-timedelta(minutes=5), "ahead of")):
        found = await examined(now=lambda away=away: db.value("select clock_timestamp()") + away)
        assert f"min {how} this machine's" in found["clock-skew"].summary
