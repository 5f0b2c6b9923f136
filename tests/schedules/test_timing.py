"""Fire times: the same in every process, rising, right across clock changes, and refused when they cannot be."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.errors import BadInput
from tenure.schedules.timing import Timing, timing

ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Asia/Beirut",
    "Asia/Kolkata",
)
CRONS = (
    "* * * * *", "*/7 * * * *", "0 * * * *", "30 2 * * *", "15,45 2 * * *", "0 0 * * *", "59 23 * * 1-5", "0 3 1 * *",
    "0 12 29 2 *", "45 * * * *", "30 1-3 * * *", "0 */6 * * *", "*/30 2 * * *", "0 0 13 * 5",
)  # fmt: skip
moments = st.datetimes(datetime(2007, 1, 1), datetime(2035, 1, 1), timezones=st.just(UTC))
timings = st.one_of(
    st.builds(Timing, st.sampled_from(CRONS), st.none(), st.sampled_from(ZONES), st.sampled_from((0.0, 5.0, 600.0))),
    st.builds(Timing, st.none(), st.integers(1, 100_000), st.just("UTC"), st.sampled_from((0.0, 0.5))),
)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def local(cron: str, zone: str, after: str, count: int) -> list[str]:
    """The next times in the zone, after a time in the zone."""
    begin = datetime.fromisoformat(after).replace(tzinfo=ZoneInfo(zone))
    return [f"{at.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M %z}" for at in timing(cron, tz=zone).upcoming(begin, count)]


@given(timings, moments)
@settings(deadline=None)
def test_times_rise_and_lie_after_the_moment(when: Timing, after: datetime) -> None:
    found = when.upcoming(after, 30)
    assert len(found) == 30
    assert all(a < b for a, b in pairwise([after, *found]))
    assert all(at.microsecond == 0 for at in found)


@given(timings, moments, st.integers(0, 40))
@settings(max_examples=200, deadline=None)
def test_the_times_do_not_depend_on_where_one_begins(when: Timing, after: datetime, number: int) -> None:
    found = when.upcoming(after, 60)
    assert when.upcoming(found[number], 60 - number - 1) == found[number + 1 :]
    between = found[number] + (found[number + 1] - found[number]) / 2
    assert when.upcoming(between, 60 - number - 1) == found[number + 1 :]


@given(timings, moments)
@settings(deadline=None)
def test_jitter_is_the_same_everywhere_and_ends_before_the_next_time(when: Timing, after: datetime) -> None:
    found = when.upcoming(after, 10)
    dues = [when.due_at("shop/report", at) for at in found]
    assert dues == [when.due_at("shop/report", at) for at in found]
    for at, due in zip(found, dues, strict=True):
        assert at <= due <= at + timedelta(seconds=when.jitter_s)
    assert all(due < at for due, at in zip(dues, found[1:], strict=False))


def test_jitter_spreads_schedules_of_different_names() -> None:
    when, at = timing(minutes=10, jitter=300), utc("2026-11-18T12:00:00")
    assert len({when.due_at(f"shop/{number}", at) for number in range(50)}) > 40


@given(timings, moments, st.integers(1, 20))
@settings(deadline=None)
def test_the_latest_times_are_the_last_of_all(when: Timing, since: datetime, count: int) -> None:
    found = when.upcoming(since, 30)
    assert when.latest(since, found[-1], count) == found[-count:]


def test_intervals_are_anchored_at_1970_and_not_at_a_start() -> None:
    when = timing(minutes=5)
    assert when.upcoming(utc("2026-11-18T12:03:17"), 2) == [utc("2026-11-18T12:05:00"), utc("2026-11-18T12:10:00")]
    assert timing(days=1).upcoming(utc("2026-11-18T12:03:17"), 1) == [utc("2026-11-19T00:00:00")]
    assert timing(hours=1, minutes=30).every_s == 5_400


@pytest.mark.parametrize(
    ("cron", "zone", "after", "expected"),
    [
        # The gap of spring: 02:30 does not exist and fires at 03:00, once.
        ("30 2 * * *", "Europe/Berlin", "2026-03-28 12:00",
         ["2026-03-29 03:00 +0200", "2026-03-30 02:30 +0200"]),
        ("15,45 2 * * *", "Europe/Berlin", "2026-03-28 12:00",
         ["2026-03-29 03:00 +0200", "2026-03-30 02:15 +0200", "2026-03-30 02:45 +0200"]),
        ("30 2 * * *", "America/New_York", "2026-03-07 12:00",
         ["2026-03-08 03:00 -0400", "2026-03-09 02:30 -0400"]),
        # The hour that comes twice in autumn: a fixed time fires in the first one.
        ("30 2 * * *", "Europe/Berlin", "2026-10-24 12:00",
         ["2026-10-25 02:30 +0200", "2026-10-26 02:30 +0100"]),
        ("30 1 * * *", "America/New_York", "2026-10-31 12:00",
         ["2026-11-01 01:30 -0400", "2026-11-02 01:30 -0500"]),
        # A repeated time fires in every hour that passes.
        ("*/30 * * * *", "Europe/Berlin", "2026-10-25 01:45",
         ["2026-10-25 02:00 +0200", "2026-10-25 02:30 +0200", "2026-10-25 02:00 +0100", "2026-10-25 02:30 +0100",
          "2026-10-25 03:00 +0100"]),
        ("*/30 * * * *", "Europe/Berlin", "2026-03-29 01:15",
         ["2026-03-29 01:30 +0100", "2026-03-29 03:00 +0200", "2026-03-29 03:30 +0200"]),
        # A change by half an hour.
        ("0 * * * *", "Australia/Lord_Howe", "2026-10-04 00:30",
         ["2026-10-04 01:00 +1030", "2026-10-04 03:00 +1100"]),
        # A clock change at midnight.
        ("0 0 * * *", "Asia/Beirut", "2026-03-28 12:00", ["2026-03-29 01:00 +0300", "2026-03-30 00:00 +0300"]),
        # A day that did not exist.
        ("0 12 * * *", "Pacific/Apia", "2011-12-29 00:00",
         ["2011-12-29 12:00 -1000", "2011-12-31 00:00 +1400", "2011-12-31 12:00 +1400"]),
        # Leap days.
        ("0 0 29 2 *", "UTC", "2026-01-01 00:00", ["2028-02-29 00:00 +0000", "2032-02-29 00:00 +0000"]),
        ("0 0 L * *", "UTC", "2028-02-01 00:00", ["2028-02-29 00:00 +0000", "2028-03-31 00:00 +0000"]),
        ("@yearly", "Asia/Kolkata", "2026-06-01 00:00", ["2027-01-01 00:00 +0530"]),
        ("@weekly", "UTC", "2026-11-18 00:00", ["2026-11-22 00:00 +0000"]),
        ("@hourly", "UTC", "2026-11-18 00:10", ["2026-11-18 01:00 +0000"]),
        ("@monthly", "UTC", "2026-11-18 00:10", ["2026-12-01 00:00 +0000"]),
        ("@daily", "UTC", "2026-11-18 00:10", ["2026-11-19 00:00 +0000"]),
    ],
)  # fmt: skip
def test_clock_changes_and_calendars(cron: str, zone: str, after: str, expected: list[str]) -> None:
    assert local(cron, zone, after, len(expected)) == expected


@pytest.mark.parametrize("change", ["2026-04-04T15:00", "2026-10-03T15:30"])
@pytest.mark.parametrize("cron", ["45 * * * *", "* 2 * * *", "*/20 1,2 * * *", "15 */2 * * *"])
def test_a_change_by_half_an_hour_leaves_no_time_out_wherever_one_begins(cron: str, change: str) -> None:
    zone, begin = ZoneInfo("Australia/Lord_Howe"), utc(change) - timedelta(hours=4)
    minutes = [begin + timedelta(minutes=n) for n in range(1, 8 * 60)]
    expected = [at for at in minutes if _fires_at(cron, at.astimezone(zone))]
    when = timing(cron, tz="Australia/Lord_Howe")
    assert when.upcoming(begin, len(expected)) == expected
    for at in minutes:
        later = [one for one in expected if one > at]
        assert when.upcoming(at, min(2, len(later))) == later[:2]


def _fires_at(cron: str, at: datetime) -> bool:
    """Whether the clock shows a time of this expression; it has lists and steps in its first two fields only."""

    def has(field: str, value: int) -> bool:
        return (field.startswith("*") and value % int(field[2:] or 1) == 0) or str(value) in field.split(",")

    minute, hour, *_ = cron.split()
    return has(minute, at.minute) and has(hour, at.hour)


def test_a_time_that_came_twice_does_not_fire_again_after_the_second_pass_began() -> None:
    second_pass = datetime(2026, 10, 25, 2, 15, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)
    (at,) = timing("30 2 * * *", tz="Europe/Berlin").upcoming(second_pass, 1)
    assert at == utc("2026-10-26T01:30:00")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"cron": "61 * * * *"}, "'61' is no minute; it must be within 0-59"),
        ({"cron": "* 24 * * *"}, "'24' is no hour"),
        ({"cron": "* * 0 * *"}, "'0' is no day of month"),
        ({"cron": "* * * 13 *"}, "'13' is no month"),
        ({"cron": "* * * * MOO"}, "'MOO' is no day of week"),
        ({"cron": "*/0 * * * *"}, "'*/0' is no minute"),
        ({"cron": "L/L * * * *"}, "'L/L' is no minute"),
        ({"cron": "0 0 30 2 *"}, "never fires"),
        ({"cron": "* * * *"}, "has 4 fields; it needs 5"),
        ({"cron": "0 * * * * *"}, "has 6 fields; it needs 5"),
        ({"cron": "@reboot"}, "cron name '@reboot' is unknown. Next: use one of @hourly"),
        ({"cron": ""}, "a cron expression is a text"),
        ({"cron": 5}, "a cron expression is a text"),
        ({"cron": "@daily", "tz": "Europe/Berln"}, "did you mean Europe/Berlin or"),
        ({"cron": "@daily", "tz": "../etc/passwd"}, "not in the IANA database"),
        ({"cron": "@daily", "tz": None}, "not in the IANA database"),
        ({"cron": "@daily", "minutes": 5}, "and not both"),
        ({}, "needs either a cron expression"),
        ({"minutes": 5, "tz": "Europe/Berlin"}, "an interval has no time zone"),
        ({"minutes": 1.5}, "minutes must be a whole number"),
        ({"minutes": True}, "minutes must be a whole number"),
        ({"seconds": 0}, "within 1 s and 366 days"),
        ({"days": 400}, "within 1 s and 366 days"),
        ({"seconds": 10, "jitter": 11}, "longer than the interval"),
        ({"cron": "@daily", "jitter": -1}, "jitter must be a number of seconds"),
        ({"cron": "@daily", "jitter": float("nan")}, "jitter must be a number of seconds"),
    ],
)  # fmt: skip
def test_wrong_timings_are_refused_with_what_is_wrong(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput) as refused:
        timing(**wrong)  # type: ignore[arg-type]
    assert said in str(refused.value)
