"""`tenure schedules`: what fires when, and why not; pause, resume, run, next and delete."""

from __future__ import annotations

import asyncio
import re
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tenure.schedules.declaration import Schedule, declare
from tenure.schedules.timing import timing
from tests.cli.conftest import Asking
from tests.harness import Harness

REPORT = declare("report", NewJob("report", {"month": "May"}), timing("0 9 * * *", tz="Europe/Berlin"))
POLL = declare("poll", NewJob("poll"), timing(minutes=5))


def stored(dsn: str, *, application: str = "shop", made: tuple[Schedule, ...] = ()) -> None:
    """Two schedules in code, and others made at run time."""

    async def store() -> None:
        async with Store.open(dsn, connections=1) as opened:
            await opened.schedules.declare([REPORT, POLL], application=application, by="w1")
            for one in made:
                await opened.schedules.put(one, application=application, by="ann")

    asyncio.run(store())


def test_an_empty_list_says_so(ask: Asking) -> None:
    done = ask.run("schedules", "list")
    assert (done.stdout, done.stderr) == ("", "there is no schedule\n")


def test_the_list_shows_when_each_fires_and_what_is_wrong(ask: Asking, db: Harness) -> None:
    stored(ask.dsn)
    ask.text("schedules", "pause", "report", "--reason", "the warehouse moves", "--actor", "ada")
    db.sql("update tenure.schedule set fire_at = now() - interval '2 hours', next_at = now() - interval '2 hours' "
           "where name = 'poll'")  # fmt: skip
    done = ask.run("schedules", "list")
    head, poll, report = done.stdout.splitlines()
    assert head.split()[:3] == ["schedule", "when", "state"]
    assert poll.startswith("shop/poll    every 300 s                overdue")
    assert report.startswith("shop/report  0 9 * * * (Europe/Berlin)  paused")
    first, second = done.stderr.splitlines()
    assert first == "shop/poll: due for 2 h, and no upkeep fires it. Next: start tenure upkeep"
    assert re.fullmatch(r"shop/report: paused by ada since [-\d]+ [:\d]+ UTC \(.+\): the warehouse moves", second)
    said = ask.said("schedules", "list", "--application", "shop")["schedules"]
    assert [(one["name"], one["state"]) for one in said] == [("poll", "overdue"), ("report", "paused")]
    assert ask.said("schedules", "list", "--application", "other") == {"schedules": []}


def test_upkeep_fires_what_is_due_and_show_tells_of_it(ask: Asking, db: Harness) -> None:
    stored(ask.dsn)
    db.sql("update tenure.schedule set fire_at = now() - interval '30 s', next_at = now() - interval '30 s' "
           "where name = 'report'")  # fmt: skip
    parts = {one["part"]: one["did"] for one in ask.said("upkeep", "--once")}
    assert parts["fire"] == 1
    text = ask.text("schedules", "show", "shop/report")
    assert text.startswith("schedule shop/report, active\n")
    assert "{'month': 'May'}" in text
    said = ask.said("schedules", "show", "report")
    assert [(fire["result"], fire["job_id"]) for fire in said["fires"]] == [("enqueued", "1")]
    assert said["job"] == {"type": "report", "payload": {"month": "May"}}


def test_next_shows_the_zone_and_utc(ask: Asking) -> None:
    stored(ask.dsn)
    lines = ask.text("schedules", "next", "report", "--count", "3").splitlines()
    assert lines[0].split() == ["Europe/Berlin", "UTC", "jitter"]
    assert len(lines) == 4
    for each in ask.said("schedules", "next", "report")["next"]:
        local, at = datetime.fromisoformat(each["local"]), datetime.fromisoformat(each["fire_at"])
        assert (local.hour, local.minute) == (9, 0)
        assert local == at == at.astimezone(ZoneInfo("Europe/Berlin"))


def test_a_schedule_is_paused_resumed_and_run(ask: Asking) -> None:
    stored(ask.dsn)
    assert "Next: tenure schedules resume shop/poll" in ask.text("schedules", "pause", "poll")
    assert ask.text("schedules", "run", "poll") == "schedule shop/poll made job 1\nNext: tenure jobs show 1\n"
    code, message = ask.refused("schedules", "run", "poll")
    assert code == "SCHEDULE_CONFLICT"
    assert message.startswith("job 1 of schedule shop/poll still waits or runs")
    assert ask.text("schedules", "resume", "poll").startswith("schedule shop/poll is resumed; next fire: ")
    assert ask.text("schedules", "resume", "poll") == "schedule shop/poll is not paused\n"


def test_what_code_declares_is_not_deleted_and_what_was_made_is(ask: Asking) -> None:
    stored(ask.dsn, made=(declare("extra", NewJob("poll"), timing(hours=1)),))
    assert ask.refused("schedules", "delete", "poll")[0] == "SCHEDULE_CONFLICT"
    assert ask.text("schedules", "delete", "extra") == "schedule shop/extra is deleted\n"
    assert ask.refused("schedules", "delete", "extra")[0] == "SCHEDULE_NOT_FOUND"


def test_a_name_of_two_applications_needs_the_application(ask: Asking) -> None:
    stored(ask.dsn)
    stored(ask.dsn, application="billing")
    answers: dict[str, Any] = {"wrong": ask.refused("schedules", "pause", "poll")}
    assert answers["wrong"][0] == "E-BAD-INPUT"
    assert "billing, shop" in answers["wrong"][1]
    ask.text("schedules", "pause", "billing/poll")
    states = {f"{one['application']}/{one['name']}": one["state"] for one in ask.said("schedules", "list")["schedules"]}
    assert (states["billing/poll"], states["shop/poll"]) == ("paused", "active")
