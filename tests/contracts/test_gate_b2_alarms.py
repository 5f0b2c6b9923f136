"""Document 004, alarms: the share of retrying, one tenant's dlq_pending, and consecutive invalid transitions."""

from __future__ import annotations

import pytest

from tenure.errors import InvalidTransition
from tenure.jobs.alarm import Alarm, AlarmLimits
from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tests.contracts.gate_b2 import PERMANENT, TRANSIENT
from tests.harness import Harness

pytestmark = pytest.mark.core


async def firing(store: Store, kind: str, limits: AlarmLimits | None = None, tenant: str | None = None) -> list[Alarm]:
    """The alarms of a kind that hold after a look."""
    await store.refusals.flush()
    await store.alarms.evaluate(limits, pause_s=0.0)
    return [one for one in await store.alarms.list(tenant=tenant) if one.kind == kind]


async def made(store: Store, tenant: str, count: int, type_: str = "settle") -> list[int]:
    """Jobs of a tenant."""
    jobs = [NewJob(type_, contract="gate_b2", tenant_id=tenant) for _ in range(count)]
    return [one.job_id for one in await store.enqueue_many(jobs) if not isinstance(one, Exception)]


async def fail(store: Store, tenant: str, count: int, failure: object = TRANSIENT) -> None:
    """Let jobs of a tenant fail."""
    held = await store.claim("gate_b2", worker="w", limit=count, tenant=tenant)
    assert len(held) == count
    for job in held:
        await store.fail(job.held, failure)  # type: ignore[arg-type]


def long_enough(db: Harness) -> None:
    """Let every condition hold for six minutes."""
    db.sql("update tenure.alarm set since = since - interval '6 min'")


@pytest.mark.req("S4-48")
async def test_the_alarm_fires_above_the_share_of_retrying_jobs_and_clears_below_it(store: Store, db: Harness) -> None:
    await made(store, "ada", 20)
    await made(store, "ben", 20)
    await fail(store, "ada", 4)
    await fail(store, "ben", 2)
    assert await firing(store, "retrying-share") == []
    assert db.value("select count(*) from tenure.alarm") == 0, "a fifth is not above a fifth"
    await fail(store, "ada", 1)
    assert await firing(store, "retrying-share") == [], "not for five minutes yet"
    long_enough(db)
    (alarm,) = await firing(store, "retrying-share")
    assert (alarm.tenant_id, alarm.value, alarm.threshold) == ("ada", 0.25, 0.2)
    assert "5 of 20 live gate_b2 jobs of tenant ada wait for a retry (25%)" in alarm.summary
    fired_at = alarm.fired_at
    (alarm,) = await firing(store, "retrying-share")
    assert alarm.fired_at == fired_at, "it fires once"
    assert await firing(store, "retrying-share", AlarmLimits(retrying_share=0.3)) == [], "the threshold is a setting"
    await firing(store, "retrying-share")
    long_enough(db)
    (alarm,) = await firing(store, "retrying-share")
    db.sql("update tenure.job set due_at = now()")
    for job in await store.claim("gate_b2", worker="w", limit=20, tenant="ada"):
        if job.counter:  # it was retrying
            await store.succeed(job.held)
    assert await firing(store, "retrying-share") == []
    (*_, last) = await store.alarms.list(history=True, kind="retrying-share")
    assert last.cleared_at is not None


@pytest.mark.req("S4-49")
@pytest.mark.req("S4-06")
async def test_the_alarm_names_the_tenant_whose_dlq_pending_grows_and_no_other(store: Store, db: Harness) -> None:
    await made(store, "ada", 10)
    await made(store, "ben", 9)
    await fail(store, "ada", 9, PERMANENT)
    await fail(store, "ben", 9, PERMANENT)
    assert db.value("select count(*) from tenure.job where state = 'dlq_pending'") == 0, "the state is transient"
    assert await firing(store, "dlq-pending-growth") == []
    await fail(store, "ada", 1, PERMANENT)
    (alarm,) = await firing(store, "dlq-pending-growth")
    assert (alarm.tenant_id, alarm.value, alarm.severity) == ("ada", 10, "P2")
    assert await firing(store, "dlq-pending-growth", tenant="ben") == [], "a tenant sees its own alarms alone"
    assert await firing(store, "dead-letters-growing") == [], "the contract's own alarm tells of them"
    await store.counts.fold()
    (same,) = await firing(store, "dlq-pending-growth", tenant="ada")
    assert same.id == alarm.id, "folded or not"
    db.sql("update tenure.rollup set start = start - interval '11 min' where unit = 'minute'")
    assert await firing(store, "dlq-pending-growth") == []


@pytest.mark.req("S4-49")
async def test_growth_is_abnormal_against_what_the_tenant_had_the_day_before(store: Store, db: Harness) -> None:
    await made(store, "ada", 10)
    await fail(store, "ada", 10, PERMANENT)
    await store.counts.fold()
    assert len(await firing(store, "dlq-pending-growth")) == 1
    # In each ten minutes of the last day four: 576 of them, so from twelve on it is abnormal.
    db.sql(
        "insert into tenure.rollup "
        "(start, last_at, seconds, number, group_id, bucket, unit, trigger, from_state, to_state, ended) "
        "select date_trunc('hour', now() - interval '3 h'), now() - interval '3 h', 0, 576, group_id, -1, 'hour', "
        "trigger, from_state, to_state, ended "
        "from tenure.rollup where unit = 'minute' and to_state = 'dlq_pending' limit 1"
    )
    assert await firing(store, "dlq-pending-growth") == []


async def refuse(store: Store, job_id: int, times: int) -> None:
    """Ask for a move that the contract does not have."""
    for _ in range(times):
        with pytest.raises(InvalidTransition, match="WF_STATE_TRANSITION_INVALID"):
            await store.cancel(job_id, actor="ada")


@pytest.mark.req("S4-50")
async def test_five_consecutive_invalid_transitions_of_a_tenant_and_type_are_a_p1(store: Store, db: Harness) -> None:
    ada, other = await made(store, "ada", 2)
    (ben,) = await made(store, "ben", 1)
    (report,) = await made(store, "ada", 1, "report")
    await refuse(store, ada, 4)
    await refuse(store, ben, 4)
    await refuse(store, report, 4)
    assert await firing(store, "invalid-transitions") == []
    await refuse(store, other, 1)
    (alarm,) = await firing(store, "invalid-transitions")
    assert (alarm.severity, alarm.tenant_id, alarm.subject, alarm.value) == ("P1", "ada", "gate_b2 settle", 5)
    assert "WF_STATE_TRANSITION_INVALID" in alarm.summary
    db.sql("update tenure.refusal set at = at - interval '61 s'")
    assert await firing(store, "invalid-transitions") == []


@pytest.mark.req("S4-50")
async def test_a_legal_move_in_between_ends_the_row_of_invalid_ones(store: Store, db: Harness) -> None:
    ada, _ = await made(store, "ada", 2)
    await refuse(store, ada, 4)
    await store.refusals.flush()
    (held,) = await store.claim("gate_b2", worker="w", limit=1, tenant="ada")
    await refuse(store, ada, 1)
    assert await firing(store, "invalid-transitions") == []
    await store.counts.fold()
    await refuse(store, ada, 3)
    assert await firing(store, "invalid-transitions") == []
    await refuse(store, ada, 1)
    assert len(await firing(store, "invalid-transitions")) == 1, "five since the move"
    await store.succeed(held.held)
    assert await firing(store, "invalid-transitions") == []
