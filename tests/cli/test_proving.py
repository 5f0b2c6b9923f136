"""`tenure verify` and `tenure replay` as a person and as a program run them: output, exit codes, typed refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from tenure.jobs.job import Failure, NewJob
from tenure.postgres.store import Store
from tests.cli.conftest import Asking
from tests.harness import Harness

AtOnce = Callable[..., tuple[int, str, str]]


async def lived(store: Store, db: Harness) -> int:
    """A job whose first worker failed, whose second was lost, and whose third succeeded."""
    made = await store.enqueue(NewJob("mail.send", {"to": "ada"}))
    (job,) = await store.claim(worker="w1")
    await store.fail(job.held, Failure("no answer", type="TransientError"))
    db.due(made.job_id)
    await store.claim(worker="w2")
    db.expire(made.job_id)
    await store.reap("standard")
    (job,) = await store.claim(worker="w3")
    await store.succeed(job.held, {"sent": True})
    return made.job_id


def tampered(db: Harness, sql: str, job_id: int) -> None:
    """Change what nobody may."""
    db.sql("set session_replication_role = replica")
    db.sql(sql, job_id)


async def test_verify_says_what_it_read_and_that_it_is_sound(store: Store, db: Harness, ask: Asking) -> None:
    await lived(store, db)
    await store.enqueue(NewJob("mail.send"))
    read, verdict = ask.text("verify").splitlines()
    assert re.fullmatch(
        r"2 jobs \(1 live\), 6 log rows, 0 dead letters, 0 flows and 5 ranges read in [\d.]+ s \([\d,]+ jobs/s\)", read
    )
    assert verdict == "every job is where its log says it is"
    said = ask.said("verify")
    assert said.pop("seconds") > 0
    assert said == {
        "sound": True, "jobs": 2, "live": 1, "events": 6, "letters": 0, "ranges": 5, "flows": 0, "more": 0,
        "violations": [],
    }  # fmt: skip


async def test_verify_names_what_disagrees_and_exits_1(store: Store, db: Harness, ask: Asking) -> None:
    job_id = await lived(store, db)
    tampered(db, "update tenure.job_done set claims = 2 where id = %s", job_id)
    done = ask.run("verify")
    assert (done.returncode, done.stderr) == (1, "")
    what = "claims is 2 in the row, and 3 by the log"
    assert done.stdout.splitlines()[1:] == [
        f"VIOLATION row and log: job {job_id}: {what}", "the database disagrees with its log"
    ]  # fmt: skip
    done = ask.run("verify", "--json")
    said = json.loads(done.stdout)
    assert (done.returncode, done.stderr, said["sound"]) == (1, "", False)
    assert said["violations"] == [{"promise": "row and log", "job_id": str(job_id), "what": what}]


async def test_verify_names_a_changed_contract(ask: Asking, db: Harness) -> None:
    db.sql(
        "update tenure.contract set declaration = jsonb_set(declaration::jsonb, '{budget,extra}', '5') "
        "where name = 'simple'"
    )
    done = ask.run("verify", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["violations"] == [
        {"promise": "the contract", "job_id": None, "what": "simple 1 was changed after it was registered"}
    ]


async def test_verify_since_reads_only_what_changed(store: Store, db: Harness, ask: Asking) -> None:
    await lived(store, db)
    db.sql("set session_replication_role = replica")
    db.sql("update tenure.job_done set updated_at = '2026-01-30T12:00Z'")
    for since, jobs in (("2h", 0), ("2026-01-30T11:59:59+00:00", 1), ("2026-01-30T12:00:01Z", 0), ("2026-01-30", 1)):
        assert json.loads(ask.run("verify", "--since", since, "--json").stdout)["jobs"] == jobs, since


@pytest.mark.parametrize("since", ["yesterday", "", "5 weeks", "-3m", "1.5h", "٣m", "999999999999d", "40000d"])
def test_a_since_that_is_no_time_is_refused_before_anything_is_started(at_once: AtOnce, since: str) -> None:
    code, out, err = at_once("verify", f"--since={since}", "--json")
    assert (code, out) == (1, "")
    assert err.startswith("E-BAD-INPUT: --since is")
    assert repr(since) in err


def test_a_database_that_cannot_be_reached_is_said_to_be_one(at_once: AtOnce) -> None:
    for command in (["verify"], ["replay"], ["replay", "--job", "1"]):
        code, out, err = at_once(*command, "--json", "--database-url", "postgresql://nobody@127.0.0.1:1/none")
        assert (code, out, err.split(":")[0]) == (1, "", "E-CANNOT-CONNECT")


def test_a_database_without_tenure_is_refused(ask: Asking, empty_dsn: str) -> None:
    for command in (["verify"], ["replay"], ["replay", "--job", "1"]):
        assert ask.refused(*command, "--database-url", empty_dsn)[0] == "E-SCHEMA-MISSING"


def test_some_cases_pass_without_passing_the_gate(ask: Asking) -> None:
    text = ask.text("replay", "rp-001", "RP-005")
    assert [line[:13] for line in text.splitlines() if line.startswith("RP")] == ["RP-001 passed", "RP-005 passed"]
    assert text.splitlines()[-1] == "passed"
    assert text.count("status_transition") == 2
    said = ask.said("replay", "RP-001")
    assert (said["passed"], [one["case"] for one in said["cases"]]) == (True, ["RP-001"])
    assert isinstance(said["cases"][0]["job_id"], str)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RP-006"], "there is no case RP-006; there are RP-001, RP-002, RP-003, RP-004, RP-005"),
        (["RP-001", "nope"], "there is no case NOPE; there are"),
        (["RP-001", "--job", "7"], "give cases or --job, not both"),
        (["--job", "4x"], "--job must be a whole number, not '4x'"),
        (["--job", "0"], "--job"),
        (["--job", "-7"], "--job must be a whole number, not '-7'"),
    ],
)  # fmt: skip
def test_what_cannot_be_replayed_is_refused_before_anything_is_started(
    at_once: AtOnce, arguments: list[str], message: str
) -> None:
    code, out, err = at_once("replay", *arguments, "--json")
    assert (code, out) == (1, "")
    assert err.startswith(f"E-BAD-INPUT: {message}")


def test_a_job_that_is_not_there_cannot_be_replayed(ask: Asking, db: Harness) -> None:
    assert ask.refused("replay", "--job", "4711")[0] == "JOB_NOT_FOUND"
    assert db.value("select count(*) from tenure.job") == 0


async def test_a_recorded_job_is_run_again_in_real_time(store: Store, db: Harness, ask: Asking) -> None:
    """Nobody moves time here: the lost worker's lease is the shortest that its contract allows, two seconds."""
    job_id = await lived(store, db)
    said = ask.said("replay", "--job", str(job_id))
    assert (said["same"], said["first_difference"], said["why"]) == (True, None, None)
    assert said["job_id"] == str(job_id)
    assert said["replayed"] == said["recorded"]
    assert [step.split(":")[0] for step in said["recorded"]] == [
        "claim",
        "retry",
        "claim",
        "expire",
        "claim",
        "succeed",
    ]
    assert db.hops(int(said["as_job_id"])) == db.hops(job_id)


async def test_a_replay_that_parts_shows_where_and_exits_1(store: Store, db: Harness, ask: Asking) -> None:
    job_id = await lived(store, db)
    tampered(db, "update tenure.event set counter = 5 where job_id = %s and seq = 2", job_id)
    done = ask.run("replay", "--job", str(job_id))
    assert (done.returncode, done.stderr) == (1, "")
    first, *steps, last = done.stdout.splitlines()
    assert re.fullmatch(rf"job {job_id} was run again as job \d+: 6 log rows", first)
    assert [step.strip() for step in steps] == [
        "1. claim: queued → running (claim 1, counter 1)", "2. retry: running → queued (claim 1, counter 1)"
    ]  # fmt: skip
    assert last == (
        "they differ at log row 2: recorded retry: running → queued (claim 1, counter 5); "
        "replayed retry: running → queued (claim 1, counter 1)"
    )
    done = ask.run("replay", "--job", str(job_id), "--json")
    said = json.loads(done.stdout)
    assert (done.returncode, said["same"], said["first_difference"]) == (1, False, 2)


async def test_the_same_happened_again_is_said_in_words(store: Store, db: Harness, ask: Asking) -> None:
    await store.enqueue(NewJob("t", contract="simple"))
    (job,) = await store.claim("simple", worker="w1")
    await store.cancelled(job.held, "enough")
    text = ask.text("replay", "--job", str(job.id))
    assert text.splitlines()[-1] == "the same happened again"
    assert ask.text("verify").splitlines()[-1] == "every job is where its log says it is"
