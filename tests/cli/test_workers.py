"""`tenure workers`, `tenure types`, `tenure jobs move` and the notice of `tenure enqueue`, as a person runs them."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from tenure.jobs.job import NewJob
from tenure.jobs.job_type import JobType
from tenure.jobs.live_worker import LiveWorker
from tenure.postgres.store import Store
from tests.cli.conftest import Asking
from tests.harness import Harness

SEND = JobType("send", max_attempts=7, lease_ttl_sec=60)
IDLE = LiveWorker(
    "w1", ("mail",), ("standard",), ("send",), "shop", "0.1.0", "box-7", 4711, 50, 2, 0.003, declares=(SEND,),
    release="2026.1",
)  # fmt: skip


async def test_workers_list_shows_idle_workers_and_whoever_only_holds_jobs(store: Store, ask: Asking) -> None:
    done = ask.run("workers", "list")
    assert (done.returncode, done.stdout) == (0, "")
    assert "no worker is live" in done.stderr
    await store.workers.enter([IDLE])
    held = await store.enqueue(NewJob("send"))
    await store.claim(worker="theirs")
    done = ask.run("workers", "list")
    _, theirs, ours = done.stdout.splitlines()
    assert re.match(r"theirs +not listed +1", theirs)
    assert re.match(
        r"w1 +live +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d +2/50 +0 +3 ms +2026.1 +mail +box-7 pid 4711 +shop +send", ours
    )
    assert done.stderr == "Next: tenure workers show theirs\n"
    said = ask.said("workers", "list")["workers"]
    assert [(one["worker_id"], one["held"], one["queues"]) for one in said] == [
        ("theirs", 1, None),
        ("w1", 0, ["mail"]),
    ]
    assert [(one["jobs"], one["loop_lag_s"]) for one in said] == [([str(held.job_id)], None), ([], 0.003)]
    assert re.search(rf"oldest jobs +{held.job_id}\n", ask.text("workers", "show", "theirs"))
    assert re.search(r"event loop +late by 3 ms\n", ask.text("workers", "show", "w1"))


async def test_workers_that_are_gone_or_silent_are_named_and_shown(store: Store, ask: Asking, db: Harness) -> None:
    names = ("stopped", "lost", "back", "silent")
    await store.workers.enter([replace(IDLE, name=name) for name in names])
    await store.workers.leave(replace(IDLE, name="stopped"))
    db.sql("update tenure.worker set last_seen_at = now() - interval '3 min' where name in ('lost', 'back')")
    await store.workers.enter([replace(IDLE, name="back", pid=4712)])  # another process has its name now
    assert await store.workers.forget() == 1
    db.sql("update tenure.worker set last_seen_at = now() - interval '65 s' where name = 'silent'")
    done = ask.run("workers", "list")
    assert re.search(r"^silent +silent \d", done.stdout, re.MULTILINE)
    notes = sorted(done.stderr.splitlines())
    assert notes[0] == "Next: tenure workers show silent"
    where = "(mail, release 2026.1) on box-7 pid 4711"
    assert [note.partition(" at ")[0] for note in notes[1:]] == [
        f"gone in the last hour: back {where} did not stop: last seen",
        f"gone in the last hour: lost {where} did not stop: last seen",
        f"gone in the last hour: stopped {where} stopped",
    ]
    assert notes[2].endswith("UTC, and ran 2 jobs then")
    shown = ask.text("workers", "show", "back")
    assert "live" in shown
    assert "did not stop" in shown
    assert "Next: tenure jobs list worker:back" in shown
    assert [one["ending"] for one in ask.said("workers", "show", "lost")["gone"]] == ["lost"]
    assert "Next: tenure workers list" in ask.refused("workers", "show", "nobody")[1]
    db.sql("update tenure.past_worker set gone_at = now() - interval '25 h'")
    await store.workers.forget()
    assert db.value("select count(*) from tenure.past_worker") == 0


async def test_types_show_who_declared_what_and_are_reset(store: Store, ask: Asking) -> None:
    done = ask.run("types", "list")
    assert (done.returncode, done.stdout) == (0, "")
    await store.types.declare([SEND], application="shop", by="w1")
    await store.workers.enter([IDLE])
    _, row = ask.text("types", "list").splitlines()
    assert re.match(r"send +standard +lease_ttl_sec 60, max_attempts 7 +shop +w1 +\d{4}-", row)
    shown = ask.text("types", "show", "send")
    assert "lease_ttl_sec 60, max_attempts 7 — application shop, by w1" in " ".join(shown.split())
    assert "worker w1" in shown
    said = ask.said("types", "show", "send")
    assert said["stored"][0]["options"] == {"lease_ttl_sec": 60, "max_attempts": 7}
    assert said["workers"][0]["options"]["standard"]["max_attempts"] == 7
    assert "send" in ask.text("types", "reset", "send")
    assert await store.types.list() == []
    assert ask.said("types", "reset", "send") == {"reset": []}
    code, _ = ask.refused("types", "show", "nope")
    assert code


async def test_queues_and_why_name_a_type_that_no_live_worker_knows(store: Store, ask: Asking) -> None:
    await store.workers.enter([IDLE])
    made = await store.enqueue(NewJob("sned", queue="mail"))
    await store.enqueue(NewJob("send", queue="mail"))
    lines = ask.text("queues", "list").splitlines()
    assert lines[-1] == (
        "queue mail: no live worker knows type sned (seen workers: w1). Next: tenure worker APP --queues mail"
    )
    (queue,) = ask.said("queues", "list")["queues"]
    assert [(one["type"], one["jobs"], one["workers"]) for one in queue["unserved_types"]] == [("sned", 1, ["w1"])]
    assert "No live worker knows type sned (seen workers: w1)" in ask.text("jobs", "why", str(made.job_id))


async def test_a_type_that_a_worker_knows_is_not_named(store: Store, ask: Asking) -> None:
    await store.workers.enter([IDLE])
    made = await store.enqueue(NewJob("send", queue="mail"))
    assert ask.said("queues", "list")["queues"][0]["unserved_types"] == []
    assert "live worker" not in ask.text("jobs", "why", str(made.job_id))


async def test_enqueue_into_a_queue_without_a_worker_says_so_and_succeeds(store: Store, ask: Asking) -> None:
    first = ask.run("enqueue", "send", "--queue", "mail")
    assert (first.returncode, "no worker is seen at all" in first.stderr) == (0, True)
    await store.workers.enter([IDLE])
    assert ask.run("enqueue", "send", "--queue", "mail").stderr == ""
    misspelt = ask.run("enqueue", "send", "--queue", "mial", "--json")
    assert misspelt.returncode == 0
    assert json.loads(misspelt.stdout)["queue"] == "mial"
    assert "no live worker takes standard jobs from queue mial" in misspelt.stderr
    assert "no live worker knows type sned (seen workers: w1)" in ask.run("enqueue", "sned", "--queue", "mail").stderr


async def test_jobs_move_repairs_a_misspelt_queue_by_id_and_by_filter(store: Store, ask: Asking, db: Harness) -> None:
    await store.workers.enter([IDLE])
    made = [(await store.enqueue(NewJob("send", queue="mial"))).job_id for _ in range(4)]
    (held,) = await store.claim(queues=["mial"], worker="w")
    assert (
        ask.text("jobs", "move", str(made[1]), "--queue", "mail", "--actor", "ada") == "jobs moved to queue mail: 1\n"
    )
    refused = ask.run("jobs", "move", str(held.id), "--queue", "mail")
    assert (refused.returncode, refused.stdout) == (1, "jobs moved to queue mail: 0\n")
    assert "INVALID" in refused.stderr
    assert ask.said("jobs", "move", "--from", "mial", "--queue", "mail") == {"queue": "mail", "moved": 2, "refused": []}
    assert db.value("select count(*) from tenure.job where queue = 'mail'") == 3
    assert db.row(held.id)["queue"] == "mial"
    assert [row["actor"] for row in db.log(made[1])] == ["ada"]
    assert "no live worker takes" in ask.run("jobs", "move", str(made[1]), "--queue", "post").stderr
    assert ask.refused("jobs", "move", "--queue", "mail")[0]
