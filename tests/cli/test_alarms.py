"""`tenure alarms` as a person runs it: look, mute with one's name, test the sinks."""

from __future__ import annotations

from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tests.cli.conftest import Asking
from tests.harness import Harness


async def test_the_list_names_each_alarm_and_the_next_command(store: Store, ask: Asking, db: Harness) -> None:
    assert ask.run("alarms", "list").stderr == "no alarm holds\n"
    made = await store.enqueue(NewJob("t", queue="mail"))
    db.sql("update tenure.job set due_at = now() - interval '6 min'")
    await store.alarms.evaluate(pause_s=0.0)
    head, *rows = ask.text("alarms", "list").splitlines()
    assert head.split() == ["alarm", "severity", "kind", "tenant", "since", "(UTC)", "state", "what"]
    assert any("oldest-waiting" in row and f"job {made.job_id} of queue mail is due" in row for row in rows)
    assert any(row.endswith(f"Next: tenure jobs why {made.job_id}") for row in rows)
    assert ask.said("alarms", "list", "--tenant", "ada") == {"alarms": []}
    (one,) = ask.said("alarms", "list", "--kind", "oldest-waiting")["alarms"]
    assert (one["severity"], one["subject"], one["details"]["queue"]) == ("P2", "mail", "mail")


async def test_a_mute_names_the_person_and_its_end(ask: Asking, db: Harness) -> None:
    given = ("test", "--for", "2h", "--actor", "ann", "--reason", "a release", "--about", "ben")
    said = ask.text("alarms", "mute", *given)
    assert said.startswith("alarms of the kind test about ben are muted by ann until ")
    assert said.endswith(" UTC\nNext: tenure alarms unmute test\n")
    row = db.one("select muted_by, reason, subject, until - muted_at as span from tenure.alarm_mute")
    assert (row["muted_by"], row["reason"], row["subject"]) == ("ann", "a release", "ben")
    assert 7_199 <= row["span"].total_seconds() <= 7_201
    assert "must" not in ask.text("alarms", "test", "--actor", "ben")
    assert "muted by ann" in ask.text("alarms", "list")
    assert ask.refused("alarms", "mute", "tset")[0] == "E-BAD-INPUT"
    assert ask.refused("alarms", "mute", "--for", "soon")[1].startswith("--for is a span of time")
    assert ask.text("alarms", "unmute", "test", "--about", "ben", "--actor", "cyd") == "1 mutes ended\n"
    assert ask.text("alarms", "unmute", "test") == "alarms of the kind test are not muted\n"
