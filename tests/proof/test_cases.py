"""Document 004's replay cases through the command: what each must show, and that a broken case is one that fails."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_commands import tenure
from tests.harness import Harness

_AGAIN = ["running->retrying", "retrying->running"]
_DEAD = ["running->dlq_pending", "dlq_pending->dlq_recorded", "dlq_recorded->failed"]
_TR = {
    "RP-001": ["queued->running", "running->succeeded"],
    "RP-002": ["queued->running", *_AGAIN, "running->succeeded"],
    "RP-003": ["queued->running", *_AGAIN * 3, "running->succeeded"],
    "RP-004": ["queued->running", *_AGAIN * 3, *_DEAD],
    "RP-005": ["queued->running", "running->succeeded"],
}


def replayed(db: Harness, place: Path, *cases: str) -> tuple[int, dict[str, Any]]:
    """The exit code of `tenure replay --json`, and what it printed by case."""
    done = tenure("replay", *cases, "--json", cwd=place, DATABASE_URL=db.dsn)
    said = json.loads(done.stdout)
    assert said["passed"] == (done.returncode == 0)
    return done.returncode, {one["case"]: one for one in said["cases"]}


@pytest.mark.core
@pytest.mark.req("S4-02", "S4-54")
def test_one_command_runs_all_five_cases_and_the_gate_passes(db: Harness, tmp_path: Path) -> None:
    done = tenure("replay", cwd=tmp_path, DATABASE_URL=db.dsn)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines if line.startswith("RP-")] == [f"{case} passed" for case in _TR]
    assert lines[-1] == "Gate B-2 passed"
    jobs = db.sql("select type, state, tenant_id, queue from tenure.job_done order by id")
    assert [job["type"] for job in jobs] == [f"replay.{case}" for case in _TR]
    assert {(job["tenant_id"], job["queue"]) for job in jobs} == {("tenure-replay", "tenure-replay")}
    assert db.value("select count(*) from tenure.job") == 0


_ENDS = [
    pytest.param("RP-001", "succeeded", 0, marks=pytest.mark.req("S4-36")),
    pytest.param("RP-002", "succeeded", 1, marks=pytest.mark.req("S4-37")),
    pytest.param("RP-003", "succeeded", 3, marks=pytest.mark.req("S4-38")),
    pytest.param("RP-004", "failed", 3, marks=pytest.mark.req("S4-39")),
    pytest.param("RP-005", "succeeded", 0, marks=pytest.mark.req("S4-40")),
]


@pytest.mark.parametrize(("case", "state", "retries"), _ENDS)
def test_a_case_goes_as_the_document_says(db: Harness, tmp_path: Path, case: str, state: str, retries: int) -> None:
    code, said = replayed(db, tmp_path, case)
    assert (code, list(said), said[case]["why"]) == (0, [case], None)
    assert [record["status_transition"] for record in said[case]["records"]] == _TR[case]
    job_id = int(said[case]["job_id"])
    row = db.one("select status, retry_count from tenure_gate_b2.jobs where job_id = %s", job_id)
    assert row == {"status": state, "retry_count": retries}
    items = db.sql("select dlq_id, status from tenure_gate_b2.dlq_items where job_id = %s", job_id)
    assert [item["status"] for item in items] == (["open"] if state == "failed" else [])
    db.log_is_sound(job_id)


@pytest.mark.req("S4-41")
def test_each_transition_is_recorded_as_a_spy_saw_it(db: Harness, tmp_path: Path) -> None:
    db.spy()
    _, said = replayed(db, tmp_path)
    for case, one in said.items():
        job_id, records = int(one["job_id"]), one["records"]
        assert [set(record) for record in records] == [
            {"trace_id", "job_id", "retry_count", "status_transition"}
        ] * len(_TR[case])
        assert all(value is not None for record in records for value in record.values())
        trace = db.value("select trace_id from tenure_gate_b2.jobs where job_id = %s", job_id)
        assert {(record["trace_id"], record["job_id"]) for record in records} == {(trace, str(job_id))}
        # What commits together the spy sees as one change: from dlq_pending to failed.
        walked = [(record["status_transition"].split("->"), record["retry_count"]) for record in records]
        walked = [(hop, count) for hop, count in walked if hop[1] != "dlq_recorded"]
        walked = [(["dlq_pending" if old == "dlq_recorded" else old, new], count) for (old, new), count in walked]
        assert [([hop.old, hop.new], hop.counter) for hop in db.seen(job_id)] == [
            (["queued", "running"] if n == 0 else hop, count) for n, (hop, count) in enumerate(walked)
        ]
        kept = db.sql(
            "select trace_id, job_id::text, retry_count, status_transition from tenure_gate_b2.replay_records "
            "where job_id = %s order by seq", job_id,
        )  # fmt: skip
        assert kept == records


_TRIGGER = """
create function public.break_it() returns trigger language plpgsql as $$ begin {body} end $$;
create trigger break_it {when} for each row execute function public.break_it()
"""
_TWICE = """
if new.trigger = 'succeed' and exists (
    select from tenure.job_done where id = new.job_id and type = 'replay.RP-002'
) then
    insert into tenure.event (
        job_id, ts, seq, claims, counter, max_attempts, contract, trigger, from_state, to_state, actor)
    values (new.job_id, new.ts + interval '1 us', new.seq + 1, new.claims, new.counter, new.max_attempts, new.contract,
            'again', new.from_state, new.to_state, new.actor);
end if;
return null;
"""
_FULL = "if new.type = 'replay.RP-001' then raise exception 'the disk is full'; end if; return new;"
_CHANGED = "update tenure.contract set declaration = jsonb_set(declaration::jsonb, '{%s}', '%s') where name = 'gate_b2'"
#: What is broken → how, and which cases must fail, saying what.
_BROKEN = {
    "no record can be written": (
        _TRIGGER.format(body="raise exception 'no room';", when="before insert on tenure.dead_letter"),
        {"RP-004": "running->dlq_pending; the document says"}),
    "a hop is logged twice": (
        _TRIGGER.format(body=_TWICE, when="after insert on tenure.event"),
        {"RP-002": "running->succeeded, running->succeeded; the document says"}),
    "the database refuses": (
        _TRIGGER.format(body=_FULL, when="before insert on tenure.job_done"), {"RP-001": "the disk is full"}),
    "another code": (
        _CHANGED % ("invalid_transition", '"NOPE"'),
        {"RP-005": "a second success was refused with NOPE, not WF_STATE_TRANSITION_INVALID"}),
    "one retry too few": (
        _CHANGED % ("budget,extra", "0"), dict.fromkeys(("RP-003", "RP-004"), "the job cannot be claimed")),
    "retries are not counted": (
        _CHANGED % ("counter,on", '["expire"]'),
        {"RP-002": "should be succeeded with 1", "RP-003": "should be succeeded with 3",
         "RP-004": "should be failed with 3"}),
}  # fmt: skip


@pytest.mark.req("S4-42")
@pytest.mark.parametrize("broken", _BROKEN)
def test_a_broken_case_fails_the_gate_and_is_named(db: Harness, tmp_path: Path, broken: str) -> None:
    sql, wanted = _BROKEN[broken]
    db.sql(sql)
    done = tenure("replay", cwd=tmp_path, DATABASE_URL=db.dsn)
    assert (done.returncode, done.stderr) == (1, "")
    parts = {part[:6]: part for part in re.split(r"^(?=RP-)", done.stdout, flags=re.MULTILINE) if part}
    assert {case: part[7:13] for case, part in parts.items()} == {
        case: "FAILED" if case in wanted else "passed" for case in _TR
    }
    for case, why in wanted.items():
        assert why in parts[case]
    assert done.stdout.splitlines()[-1] == f"Gate B-2 did not pass: {', '.join(wanted)}"


def test_the_records_of_a_case_that_failed_show_how_far_it_came(db: Harness, tmp_path: Path) -> None:
    sql, _ = _BROKEN["no record can be written"]
    db.sql(sql)
    _, said = replayed(db, tmp_path, "RP-004")
    hops = [record["status_transition"] for record in said["RP-004"]["records"]]
    assert hops == _TR["RP-004"][:-2]
