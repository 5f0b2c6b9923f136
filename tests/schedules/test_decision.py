"""Which of the due fire times get a job, which are missed, and which time is next."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from tenure.schedules.decision import MAX_COUNTED, MAX_MADE_UP, MISSED, ON_TIME_S, decide
from tenure.schedules.timing import Timing, timing
from tests.schedules.test_timing import moments, timings

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
FIVE = timing(minutes=5)


def minutes(number: float) -> datetime:
    return NOON + timedelta(minutes=number)


def test_a_time_that_is_due_fires_once_and_the_next_one_follows() -> None:
    for policy in MISSED:
        assert decide(FIVE, "k", policy, NOON, minutes(0.01)) == ((NOON,), None, minutes(5), minutes(5))


def test_what_is_not_due_yet_waits() -> None:
    assert decide(FIVE, "k", "once", NOON, minutes(-1)) == ((), None, NOON, NOON)


def test_once_makes_one_job_of_all_missed_times() -> None:
    fires, missed, fire_at, _ = decide(FIVE, "k", "once", NOON, minutes(23))
    assert fires == (minutes(20),)
    assert missed == (NOON, minutes(15), 4)
    assert fire_at == minutes(25)


def test_skip_drops_missed_times_and_fires_one_that_is_on_time() -> None:
    assert decide(FIVE, "k", "skip", NOON, minutes(23)) == ((), (NOON, minutes(20), 5), minutes(25), minutes(25))
    on_time = decide(FIVE, "k", "skip", NOON, minutes(20.5))
    assert on_time.fires == (minutes(20),)
    assert on_time.missed == (NOON, minutes(15), 4)


def test_all_makes_up_for_every_missed_time() -> None:
    fires, missed, fire_at, _ = decide(FIVE, "k", "all", NOON, minutes(23))
    assert fires == (NOON, minutes(5), minutes(10), minutes(15), minutes(20))
    assert (missed, fire_at) == (None, minutes(25))


def test_all_is_bounded_after_a_year() -> None:
    every = timing("* * * * *", tz="Europe/Berlin")
    later = NOON + timedelta(days=365, seconds=30)
    fires, missed, fire_at, _ = decide(every, "k", "all", NOON, later)
    assert fires == tuple(later.replace(second=0) - timedelta(minutes=99 - n) for n in range(MAX_MADE_UP))
    assert missed is not None
    assert (missed.first, missed.times) == (NOON, MAX_COUNTED)
    assert missed.last == fires[0] - timedelta(minutes=1)
    assert fire_at == later.replace(second=0) + timedelta(minutes=1)


def test_a_year_of_seconds_is_decided_at_once() -> None:
    later = NOON + timedelta(days=365)
    assert decide(timing(seconds=1), "k", "once", NOON, later).fires == (later,)


def test_jitter_delays_the_fire_and_not_its_time() -> None:
    when = timing(minutes=5, jitter=120)
    due = when.due_at("k", NOON)
    assert decide(when, "k", "once", NOON, due - timedelta(milliseconds=1)).fires == ()
    assert decide(when, "k", "once", NOON, due).fires == (NOON,)


@given(timings, moments, st.integers(0, 2_000_000), st.sampled_from(MISSED))
def test_every_due_time_is_decided_once(when: Timing, after: datetime, passed: int, policy: str) -> None:
    (fire_at,) = when.upcoming(after, 1)
    now = fire_at + timedelta(seconds=passed)
    fires, missed, following, next_at = decide(when, "k", policy, fire_at, now)
    assert following is not None
    assert next_at is not None
    assert next_at > now
    assert next_at == when.due_at("k", following)
    decided = [
        *([missed.first, missed.last] if missed and missed.times > 1 else [missed.first] if missed else []),
        *fires,
    ]
    assert decided == sorted(set(decided))
    assert all(when.due_at("k", at) <= now for at in decided)
    if decided:
        assert decided[0] == fire_at
        assert when.upcoming(decided[-1], 1) == [following]
    if missed and missed.times < MAX_COUNTED:
        assert when.upcoming(missed.first - timedelta(seconds=1), missed.times)[-1] == missed.last
    late = decided and now - when.due_at("k", decided[-1]) > timedelta(seconds=ON_TIME_S)
    assert len(fires) <= {"skip": 0 if late else 1, "once": 1, "all": MAX_MADE_UP}[policy]
    if policy == "once" and decided:
        assert len(fires) == 1
