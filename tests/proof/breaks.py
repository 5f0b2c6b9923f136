"""Every way to break a database that the audit must see: one change by SQL, and the promises that it breaks.

`{id}` is the job's id, `{last}` the number of its last log row. Nothing else in the database is touched.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.proof.histories import WIDTH


@dataclass(frozen=True)
class Break:
    """A change to one job, the promise that must be named for it, and words of what must be said."""

    name: str
    of: str
    sql: str
    promise: str
    says: str
    #: Other jobs that are told of too, with the same promise.
    also: tuple[str, ...] = ()


_LETTER = """
insert into tenure.dead_letter (
    job_id, contract, tenant_id, type, reason_code, last_error, counter, claims, correlation_id, trace_id, failed_at)
select {id}, contract, tenant_id, type, 'parse_error', '{{}}', 1, 1, '', '', now() from tenure.job where id = {id}
"""
_TWIN = """
create temp table twin as select * from tenure.job where id = {id};
update twin set role = 'done', state = 'succeeded';
insert into tenure.job_done select * from twin
"""
_ALIVE_AGAIN = """
alter table tenure.job drop constraint job_valid;
insert into tenure.job select * from tenure.job_done where id = {id};
update tenure.job set lease_token = null where id = {id};
delete from tenure.job_done where id = {id}
"""
_DOUBLED = """
insert into tenure.event (
    job_id, ts, seq, claims, counter, max_attempts, contract, trigger, from_state, to_state, actor)
select job_id, ts + interval '1 us', seq + 1, claims, counter, max_attempts, contract, trigger, from_state, to_state,
       actor
from tenure.event where job_id = {id} and seq = {last}
"""
_BOTH_ENDS = """
update tenure.job_done set seq = seq + 1, updated_at = updated_at + interval '1 us' where id = {id}
"""
_BEHIND = f"""
insert into tenure.event (
    job_id, ts, seq, claims, counter, max_attempts, contract, trigger, from_state, to_state, actor)
select {WIDTH} + 9000, now(), n, 1, 1, 5, 'standard', 'claim', 'queued', 'running', 'w' from generate_series(1, 3) as n
"""
_SWAPPED = """
update tenure.event set ts = other.ts
from (select seq, ts from tenure.event where job_id = {id} and seq in (2, 3)) as other
where event.job_id = {id} and event.seq in (2, 3) and other.seq = 5 - event.seq
"""
_LIMIT_OF_ONE = """
update tenure.event set max_attempts = 1 where job_id = {id};
update tenure.job_done set max_attempts = 1 where id = {id}
"""
_RICH, _RUNNING, _OPEN = "standard: rich", "standard: running", "standard: fatal"

ROWS = [
    Break("the state", "standard: succeeded", "update tenure.job_done set state = 'cancelled' where id = {id}",
          "row and log", "state is 'cancelled' in the row, and 'succeeded' by the log"),
    Break("the state of a dead one", _OPEN, "update tenure.job_done set state = 'succeeded' where id = {id}",
          "row and log", "state is 'succeeded' in the row, and 'dead' by the log"),
    Break("the state of a live one", "gate_b2: retrying", "update tenure.job set state = 'queued' where id = {id}",
          "row and log", "'queued' in the row, and 'retrying'"),
    Break("the role", "reliability: assigned", "update tenure.job set role = 'active' where id = {id}",
          "row and log", "role is 'active' in the row, and 'leased' by the log"),
    Break("a role without a lease", _RUNNING, "update tenure.job set role = 'ready' where id = {id}",
          "row and log", "role is 'ready'"),
    Break("the claims", _RUNNING, "update tenure.job set claims = claims + 1 where id = {id}",
          "row and log", "claims is 2 in the row, and 1 by the log"),
    Break("the counter", "dispatcher: promoted", "update tenure.job set counter = 1 where id = {id}",
          "row and log", "counter is 1 in the row, and 2 by the log"),
    Break("the raises", _RICH, "update tenure.job_done set raises = 0 where id = {id}",
          "row and log", "raises is 0 in the row, and 2 by the log"),
    Break("the number of log rows", _RICH, "update tenure.job_done set seq = seq + 1 where id = {id}",
          "the log", "the row says 11 log rows, and there are 10"),
    Break("the time of the last change", "simple: SUCCESS",
          "update tenure.job_done set updated_at = updated_at + interval '1 us' where id = {id}",
          "row and log", "updated_at is"),
    Break("the limit", "phase27: exhausted", "update tenure.job_done set max_attempts = 9 where id = {id}",
          "row and log", "max_attempts is 9 in the row, and 2 by the log"),
    Break("a budget that was not kept", "simple: FAILED", _LIMIT_OF_ONE, "budget", "claimed 2 times with a limit of 1"),
    Break("a version that nobody registered", "phase27: queued",
          "update tenure.job set version = '9' where id = {id}", "the contract", "phase27 9 is not registered"),
    Break("live and done at once", "standard: tried again", _TWIN, "the end is one", "live and finished at once"),
    Break("a finished one among the live", "standard: cancelled at once", _ALIVE_AGAIN, "the end is one",
          "cancelled among the live"),
    Break("held without a token", _RUNNING, "update tenure.job set lease_token = null where id = {id}",
          "nothing stranded", "running without a whole lease"),
    Break("held without an end", "simple: RUNNING", "update tenure.job set lease_expires_at = null where id = {id}",
          "nothing stranded", "RUNNING without a whole lease"),
    Break("ready with a lease", "reliability: queued",
          "update tenure.job set lease_token = gen_random_uuid(), lease_owner = 'w', lease_expires_at = now() "
          "where id = {id}", "one lease", "queued with a lease on it"),
    Break("waiting with an owner", "dispatcher: waiting", "update tenure.job set lease_owner = 'w' where id = {id}",
          "one lease", "Failed with a lease on it"),
    Break("held by somebody else", "gate_b2: running", "update tenure.job set lease_owner = 'thief' where id = {id}",
          "one lease", "not that of the last claim"),
    Break("waiting for no time", "dispatcher: waiting", "update tenure.job set due_at = null where id = {id}",
          "nothing stranded", "Failed has no due time"),
    Break("held by a claim that nobody made", "phase27: running",
          "delete from tenure.claim where key = (select lease_token from tenure.job where id = {id})",
          "claims", "the claim that holds it is not known"),
    Break("its key is gone", "standard: keyed", "delete from tenure.key where job_id = {id}",
          "keys", "a repeat would make a second job"),
    Break("its key is another job's", "standard: keyed and live",
          "update tenure.job set idempotency_key = 'order-1' where id = {id}", "keys", "a repeat would make"),
]  # fmt: skip

LOGS = [
    Break("the first row is gone", _RICH, "delete from tenure.event where job_id = {id} and seq = 1",
          "the log", "log row 1 is missing: 2 follows 0"),
    Break("a row is gone", _RICH, "delete from tenure.event where job_id = {id} and seq = 4",
          "the log", "log row 4 is missing: 5 follows 3"),
    Break("the last row is gone", _RICH, "delete from tenure.event where job_id = {id} and seq = {last}",
          "the log", "the row says 10 log rows, and there are 9"),
    Break("the whole log is gone", "gate_b2: succeeded", "delete from tenure.event where job_id = {id}",
          "the log", "the row says 6 log rows, and there are 0"),
    Break("the last row is there twice", _RICH, _DOUBLED, "the log", "the row says 10 log rows, and there are 11"),
    Break("two ends", _RICH,
          f"{_DOUBLED};{_BOTH_ENDS}", "the contract", "log row 11: standard has no succeed from succeeded"),
    Break("swapped times", _RICH, _SWAPPED, "the log", "log row 3 is not later than the one before"),
    Break("another trigger", _RICH, "update tenure.event set trigger = 'snooze' where job_id = {id} and seq = 2",
          "row and log", "raises is 2 in the row, and 3 by the log"),
    Break("a trigger that is none", _RICH, "update tenure.event set trigger = 'vanish' where job_id = {id} and seq = 2",
          "the contract", "log row 2: standard has no vanish from running to queued"),
    Break("another target", _RICH, "update tenure.event set to_state = 'dead' where job_id = {id} and seq = {last}",
          "the contract", "log row 10: to_state is 'dead', and must be 'succeeded'"),
    Break("another source", "phase27: completed",
          "update tenure.event set from_state = 'queued' where job_id = {id} and seq = 2",
          "the contract", "log row 2: from_state is 'queued', and must be 'running'"),
    Break("another counter", _RICH, "update tenure.event set counter = counter + 1 where job_id = {id} and seq = 5",
          "the contract", "log row 5: counter is 4, and must be 3"),
    Break("other claims", _RICH, "update tenure.event set claims = claims + 1 where job_id = {id} and seq = 3",
          "the contract", "log row 3: claims is 3, and must be 2"),
    Break("a hop that says it is none", _RICH,
          "update tenure.event set hop = false where job_id = {id} and seq = {last}",
          "the contract", "log row 10: succeed is not a fact"),
    Break("a fact that says it is a hop", "standard: asked to stop",
          "update tenure.event set hop = true where job_id = {id} and seq = 2",
          "the contract", "log row 2: standard has no cancel_requested"),
    Break("a fact of another count", "reliability: running",
          "update tenure.event set counter = 7 where job_id = {id} and seq = 3", "the contract", "log row 3"),
    Break("a fact of other claims", "reliability: running",
          "update tenure.event set claims = 7 where job_id = {id} and seq = 3", "the contract", "log row 3"),
    Break("a row of another contract", "simple: SUCCESS",
          "update tenure.event set contract = 'standard' where job_id = {id} and seq = 1",
          "the log", "log row 1 is of another contract, standard"),
    Break("a row of another limit", "simple: SUCCESS",
          "update tenure.event set max_attempts = 9 where job_id = {id} and seq = 1",
          "the log", "log row 1 has a limit of 9"),
    Break("a way round the record", "gate_b2: failed",
          "delete from tenure.event where job_id = {id} and seq = 9; "
          "update tenure.event set seq = 9, from_state = 'dlq_pending' where job_id = {id} and seq = 10; "
          "update tenure.job_done set seq = 9 where id = {id}", "the contract", "log row 9"),
    Break("a log without its job", "standard: cancelled by failing",
          "delete from tenure.job_done where id = {id}", "the log", "3 log rows of a job that is not there"),
]  # fmt: skip

LETTERS = [
    Break("dead without a letter", _OPEN, "delete from tenure.dead_letter where job_id = {id}",
          "letters", "dead without its dead letter"),
    Break("failed without a record", "gate_b2: failed", "delete from tenure.dead_letter where job_id = {id}",
          "letters", "failed without its dead letter"),
    Break("a letter of a living job", "reliability: queued", _LETTER, "letters", "is of a job that is queued"),
    Break("a letter at the commit point", "gate_b2: dlq_pending", _LETTER,
          "letters", "is of a job that is dlq_pending"),
    Break("a letter of other counts", _OPEN, "update tenure.dead_letter set claims = 9 where job_id = {id}",
          "letters", "has other counts"),
    Break("a letter of another contract", _OPEN,
          "update tenure.dead_letter set contract = 'simple' where job_id = {id}", "letters", "is of contract simple"),
    Break("run again as nothing", _OPEN,
          "update tenure.dead_letter set status = 'requeued', requeued_as = null where job_id = {id}",
          "letters", "is requeued, run again as None"),
    Break("run again as a job that is not there", _OPEN,
          "update tenure.dead_letter set status = 'requeued', requeued_as = {id} + 4711 where job_id = {id}",
          "letters", "which does not point back"),
    Break("run again as a job that cannot be", _OPEN,
          "update tenure.dead_letter set status = 'requeued', requeued_as = 1000000000000 where job_id = {id}",
          "letters", "which does not point back"),
    Break("run again, and yet open", "standard: requeued",
          "update tenure.dead_letter set status = 'open' where job_id = {id}", "letters", "is open, run again as"),
    Break("run again by a job that forgot it", "standard: requeued",
          "update tenure.job set origin_letter = null where origin_letter is not null", "letters",
          "which does not point back"),
    Break("run again as another", "standard: requeued",
          "update tenure.dead_letter set requeued_as = {id} where job_id = {id}",
          "letters", "which does not point back", also=("standard: run again",)),
    Break("discarded by nobody", "standard: discarded",
          "update tenure.dead_letter set discard_asked_key = null where job_id = {id}",
          "letters", "without the required people"),
    Break("discarded by one", "gate_b2: discarded by two",
          "update tenure.dead_letter set discard_approved_by = null where job_id = {id}",
          "letters", "without the required people"),
    Break("discarded by one person twice", "gate_b2: discarded by two",
          "update tenure.dead_letter set discard_approved_by = '  ADA ' where job_id = {id}",
          "letters", "without the required people"),
    Break("discarded before the second agreed", "gate_b2: asked about",
          "update tenure.dead_letter set status = 'discarded' where job_id = {id}",
          "letters", "without the required people"),
]  # fmt: skip

EFFECTS = [
    Break("under a claim that nobody had", _RICH, "update tenure.effect set claims = 9 where job_id = {id}",
          "no stale commit", "under claim 9, which the log does not know"),
    Break("before its claim", "reliability: compensating",
          "update tenure.effect set at = at - interval '1 hour' where job_id = {id}",
          "no stale commit", "under claim 1, when it did not hold the job"),
    Break("after its claim", "reliability: compensated by the next",
          "update tenure.effect set at = (select max(ts) from tenure.event where job_id = {id}) where job_id = {id}",
          "no stale commit", "when it did not hold the job"),
]  # fmt: skip

#: Of no job that is there: what is named is an id, or none.
ELSEWHERE: list[tuple[str, str, list[tuple[str, int | None]], str]] = [
    ("a key of a job that is gone", f"insert into tenure.key values ('acme', 'k', 'enqueue', '', {WIDTH} + 9000, null)",
     [("keys", WIDTH + 9000)], "the key 'k' of acme belongs to a job that is not there"),
    ("log rows behind the last job", _BEHIND, [("the log", WIDTH + 9000)], "3 log rows of a job that is not there"),
    ("an effect of a job that is gone", f"insert into tenure.effect values ({WIDTH} + 9000, 'pay', 1, now())",
     [("no stale commit", WIDTH + 9000)], "which the log does not know"),
    ("a letter of a job that is gone",
     f"update tenure.dead_letter set job_id = {WIDTH} + 9000 where job_id < {WIDTH} and status = 'open'",
     [("letters", WIDTH + 9000)], "is of a job that is not there"),
    ("a range without a table", "drop table tenure.event_4", [("ranges", None)], "ids 4194304 to 5242879"),
    ("a range whose table is not in its place", "alter table tenure.job_done detach partition tenure.job_done_4",
     [("ranges", None)], "have no tables of their own"),
    ("ids that were given behind the ranges", "select setval('tenure.job_id_seq', 99999999)", [("ranges", None)],
     "ids were given up to 99999999, and the ranges end at"),
    ("ranges that overlap", "update tenure.range set high = high + 1 where low = 2097152", [("ranges", None)],
     "ids 2097152 to 3145728 overlap with those from 3145728"),
    ("a job in no range", "insert into tenure.job (id, contract, version, state, role, type, max_attempts) "
     "values (1000000000000, 'standard', '1', 'queued', 'ready', 't', 5)", [("ranges", 1000000000000)],
     "it is in no range"),
]  # fmt: skip
