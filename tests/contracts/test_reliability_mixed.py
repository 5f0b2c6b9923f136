"""Document 002 under a mixed history: four workers, jobs that succeed, fail and are lost, and what must hold of all."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import pytest_asyncio

from tenure.errors import LeaseConflictError
from tenure.jobs.job import Job, NewJob
from tenure.jobs.outcome import Enqueued
from tenure.postgres.store import Store
from tests.contracts.reliability import INVALID, PERMANENT, TRANSIENT, events, stores
from tests.harness import Harness

pytestmark = pytest.mark.core

NINE = {"id", "job_id", "type", "ts", "actor", "correlation_id", "cause", "payload", "version"}
RANK = {"queued": 0, "assigned": 1, "running": 2}

#: Every lease from its beginning to its end, as the rows had it.
_LEASES = """
create table public.lease (
    n bigint generated always as identity, id bigint, claims int, token uuid, owner text, opened boolean,
    expires timestamptz, at timestamptz default clock_timestamp());
create function public.lease() returns trigger language plpgsql as $$
begin
    if tg_op = 'UPDATE' and old.lease_token is not distinct from new.lease_token then return null; end if;
    if old.lease_token is not null then
        insert into public.lease (id, claims, token, owner, opened, expires)
        values (old.id, old.claims, old.lease_token, old.lease_owner, false, old.lease_expires_at);
    end if;
    if tg_op = 'UPDATE' and new.lease_token is not null then
        insert into public.lease (id, claims, token, owner, opened, expires)
        values (new.id, new.claims, new.lease_token, new.lease_owner, true, new.lease_expires_at);
    end if;
    return null;
end $$;
create trigger lease after update or delete on tenure.job for each row execute function public.lease();
"""


@dataclass
class Mixed:
    """A history of many jobs: who they were, how many leases ran out, and how many late calls were refused."""

    ids: list[int] = field(default_factory=list)
    lost: int = 0
    late: int = 0


async def live_through(store: Store, db: Harness, job: Job, fate: float, mixed: Mixed) -> None:
    """One attempt of one job: it is abandoned before or after its start, fails in some way, or succeeds."""
    if fate >= 0.15:
        await store.start(job.held)
    if fate < 0.4:
        db.expire(job.id)
        mixed.lost += 1
        await asyncio.sleep(0)  # meanwhile another may take it
        with pytest.raises(LeaseConflictError):
            await store.succeed(job.held)
        mixed.late += 1
    elif fate < 0.75:
        await store.fail(job.held, TRANSIENT if fate < 0.65 else PERMANENT if fate < 0.7 else INVALID)
    else:
        await store.succeed(job.held)


@pytest_asyncio.fixture
async def mixed(dsn: str, db: Harness) -> AsyncIterator[Mixed]:
    """Forty jobs and four workers at once, until every job ended; time passes by itself."""
    db.spy()
    db.sql(_LEASES)
    chance, history = random.Random(2), Mixed()

    async def work(store: Store, name: str) -> None:
        while db.value("select count(*) from tenure.job"):
            db.sql("update tenure.job set due_at = now() where role = 'ready' and due_at > now()")
            for job in await store.claim("reliability", worker=name, limit=2):
                await live_through(store, db, job, chance.random(), history)

    async with stores(dsn, 4) as four:
        new = [NewJob("mixed", contract="reliability", max_attempts=chance.randint(1, 4)) for _ in range(40)]
        history.ids = [made.job_id for made in await four[0].enqueue_many(new) if isinstance(made, Enqueued)]
        await asyncio.gather(*(work(store, f"w{n}") for n, store in enumerate(four)))
    db.log_is_sound(*history.ids)
    yield history


@pytest.mark.req("S2-18", "S2-61")
async def test_every_transition_of_a_mixed_history_has_exactly_one_event(mixed: Mixed, db: Harness) -> None:
    unmatched = db.sql(
        "with seen as (select id, row_number() over (partition by id order by n) as k, old, new from public.spy), "
        "told as (select job_id, row_number() over (partition by job_id order by ts, id) as k, "
        "         payload ->> 'from' as old, payload ->> 'to' as new from tenure_reliability.job_events) "
        "select * from seen full join told "
        "on (seen.id, seen.k, seen.old, seen.new) = (told.job_id, told.k, told.old, told.new) "
        "where seen.id is null or told.job_id is null"
    )
    assert unmatched == []
    counted = Counter(event["type"] for job_id in mixed.ids for event in events(db, job_id))
    ends = Counter(hop.new for job_id in mixed.ids for hop in db.seen(job_id))
    names = {
        "assigned": "job_claimed", "running": "job_started", "queued": "job_requeued", "succeeded": "job_succeeded",
        "failed": "job_failed", "dead_lettered": "job_dead_lettered",
    }  # fmt: skip
    assert counted == {names[state]: count for state, count in ends.items()}
    assert set(counted) == set(names.values())


@pytest.mark.req("S2-16")
async def test_leases_of_one_job_never_overlap(mixed: Mixed, db: Harness) -> None:
    spans = db.sql(
        "select o.id, o.claims, o.owner, o.at as opened, c.at as closed, c.expires "
        "from public.lease o join public.lease c on (c.id, c.token) = (o.id, o.token) and o.opened and not c.opened "
        "order by o.id, o.n"
    )
    assert len(spans) == db.value("select count(*) from tenure_reliability.job_events where type = 'job_claimed'")
    assert all(span["opened"] < span["closed"] for span in spans)
    for before, after in pairwise(spans):
        assert before["id"] != after["id"] or before["closed"] <= after["opened"]
    # Nobody took a lease that had time left: such a lease was closed by its own holder's call.
    own = {(event["job_id"], event["claims"], event["actor"]) for event in db.sql("select * from tenure.event")
           if event["trigger"] not in ("claim", "start", "expire", "expire_at_cap")}  # fmt: skip
    living = {(span["id"], span["claims"], span["owner"]) for span in spans if span["expires"] >= span["closed"]}
    assert living == own


@pytest.mark.req("S2-60")
async def test_every_expiry_is_followed_by_a_requeue_or_a_dead_letter_and_no_job_is_claimed_twice(
    mixed: Mixed, db: Harness
) -> None:
    closings = [
        event for job_id in mixed.ids for event in events(db, job_id) if event["payload"]["reason"] == "lease_expired"
    ]
    assert len(closings) == mixed.lost == mixed.late > 10
    assert {event["type"] for event in closings} == {"job_requeued", "job_dead_lettered"}
    assert {event["actor"] for event in closings} == {"tenure:upkeep"}
    claims = [hop.claims for job_id in mixed.ids for hop in db.seen(job_id) if hop.new == "assigned"]
    expected = [n for job_id in mixed.ids for n in range(1, db.row(job_id)["claims"] + 1)]
    assert claims == expected


async def test_rank_rises_strictly_within_an_attempt(mixed: Mixed, db: Harness) -> None:
    for job_id in mixed.ids:
        hops = db.seen(job_id)
        for before, after in pairwise(hops):
            # Only the closing of an attempt leads back to queued, and only a new claim leads on from there.
            if after.new == "queued":
                assert before.new in ("assigned", "running")
            else:
                assert RANK.get(after.new, 3) > RANK.get(before.new, 3)
                assert (after.claims > before.claims) == (before.new == "queued")
        back = {event["trigger"] for event in db.log(job_id) if event["to_state"] == "queued"}
        assert back <= {"retry", "expire"}


@pytest.mark.req("S2-25")
async def test_every_transition_records_when_who_why_and_what_it_belongs_to(mixed: Mixed, db: Harness) -> None:
    shown = "select ts, actor, payload ->> 'reason' as reason, correlation_id from tenure_reliability.job_events"
    stored = "select ts, actor, reason, correlation_id from tenure.event where hop"
    for rows in (db.sql(shown), db.sql(stored)):
        assert len(rows) == sum(len(db.seen(job_id)) for job_id in mixed.ids)
        assert [row for row in rows if not all(row.values())] == []


@pytest.mark.req("S2-46")
async def test_every_event_has_the_nine_fields_and_names_the_event_that_caused_it(mixed: Mixed, db: Harness) -> None:
    rows = db.sql("select * from tenure_reliability.job_events order by job_id, ts")
    assert len(rows) > 3 * len(mixed.ids)
    assert set(rows[0]) >= NINE
    assert [row for row in rows if any(row[name] is None for name in NINE - {"cause"})] == []
    assert len({row["id"] for row in rows}) == len(rows)
    assert {row["version"] for row in rows} == {1}
    # The cause of an event is the event before it; the first of a job has none.
    last: dict[int, str] = {}
    for row in rows:
        assert row["cause"] == last.get(row["job_id"])
        last[row["job_id"]] = row["id"]
