"""Jobs in every state in which a caller may find one, and what a success made of them, so that two ways compare."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import uuid4

import pytest

from tenure.contracts import BUILT_IN
from tenure.contracts.numbers import Heartbeat, Lease
from tenure.errors import Refused
from tenure.jobs.job import Failure, Held, NewJob
from tenure.jobs.outcome import Enqueued, Outcome
from tenure.postgres.bound_contract import BoundContract
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.holder_calls import calls

#: The contracts whose success is one plain hop.
SHORT = [name for name, contract in BUILT_IN.items() if BoundContract(contract).success is not None]

#: As `standard`, but a holder that is late has forfeited its lease; and what it did is undone before it may fail.
STRICT = replace(
    BUILT_IN["standard"],
    lease=Lease(
        seconds=30,
        after_expiry="forfeited",
        heartbeat=Heartbeat(seconds=15, minimum_seconds=10, maximum_seconds=30, missed=2),
    ),
)


@dataclass(frozen=True)
class Case:
    """What happened to a job since it was claimed, in SQL, and how its former holder asks."""

    since: str = ""
    ask: Callable[[Held], Held] = lambda held: held


def _but(**other: Any) -> Callable[[Held], Held]:
    return lambda held: Held(**{name: getattr(held, name) for name in Held.__slots__} | other)


def _under_another(held: Held) -> Held:
    other = BUILT_IN["phase27" if held.contract == "standard" else "standard"]
    return Held(held.id, held.claims, held.token, other.name, other.version)


CASES: dict[str, Case] = {
    "fresh": Case(),
    "renewed": Case("lease_expires_at = now() + interval '9 minutes', last_heartbeat_at = now()"),
    "lease ran out": Case("lease_expires_at = now() - interval '1 second'"),
    "beats missed": Case("last_heartbeat_at = now() - interval '31 seconds'"),
    "own beats missed": Case("last_heartbeat_at = now() - interval '3 seconds', heartbeat_ms = 1000"),
    "own beats kept": Case("last_heartbeat_at = now() - interval '31 seconds', heartbeat_ms = 60000"),
    "claimed again": Case("claims = claims + 1, lease_token = gen_random_uuid(), lease_owner = 'other'"),
    "same token, other claim": Case("claims = claims + 1"),
    "same claim, other token": Case("lease_token = gen_random_uuid()"),
    "proof of a claim that never was": Case(ask=_but(claims=7)),
    "token of nobody": Case(ask=_but(token=uuid4())),
    "no holder": Case("lease_token = null, lease_owner = null, lease_expires_at = null"),
    "holder without a name": Case("lease_owner = null"),
    "given back": Case("role = 'ready', state = :initial, lease_token = null"),
    "proof kept on a ready job": Case("role = 'ready', state = :initial"),
    "compensating": Case('pending = \'{"trigger": "exhaust", "error": {"message": "no"}}\''),
    "effects to undo": Case("undoable = true"),
    "asked to stop": Case("cancel_requested_at = now()"),
    "clock stepped back": Case("updated_at = now() + interval '1 hour', started_at = now() + interval '1 hour'"),
    "another version": Case("version = '0'"),
    "asked under another contract": Case(ask=_under_another),
    "progress": Case("progress = '{\"at\": 3}', checkpoint = '[1]', last_error = '{\"message\": \"before\"}'"),
    "put off before": Case("raises = 3, counter = counter + 2, origin_letter = 9, created_by = 'me'"),
    "succeeded": Case("succeeded"),
    "failed": Case("failed"),
    "succeeded by another": Case("succeeded", _but(token=uuid4())),
    "unknown id": Case(ask=_but(id=2**40)),
}


async def prepared(store: Store, db: Harness, contract: str, names: Sequence[str]) -> list[Held]:
    """Claimed jobs, one for each of these cases, to which that has happened; as their holders ask for them."""
    queue = f"queue-{uuid4().hex[:8]}"
    new = [
        NewJob("t", {"n": n}, contract=contract, queue=queue, trace_id=f"trace {n}" if n % 2 else None)
        for n, _ in enumerate(names)
    ]
    made = await store.enqueue_many(new)
    assert all(isinstance(one, Enqueued) for one in made)
    jobs = await store.claim(contract, [queue], worker="w", limit=len(names))
    assert len(jobs) == len(names)
    await store.report("start", calls([job.held for job in jobs]))
    for job, name in zip(jobs, names, strict=True):
        case = CASES[name]
        if case.since == "succeeded":
            await store.succeed(job.held, "first")
        elif case.since == "failed":
            db.sql("update tenure.job set max_attempts = 0 where id = %s", job.id)
            await store.fail(job.held, Failure("no", type="PermanentError", retryable=False))
        elif case.since:
            initial = f"'{BUILT_IN[contract].initial}'"
            db.sql(f"update tenure.job set {case.since.replace(':initial', initial)} where id = %s", job.id)
    return [CASES[name].ask(job.held) for job, name in zip(jobs, names, strict=True)]


@contextmanager
def through_the_gate_alone(store: Store) -> Iterator[None]:
    """No short way while the block lasts."""
    with pytest.MonkeyPatch.context() as patched:
        for machine in store._engine.registry._bound.values():
            patched.setattr(machine, "success", None)
        yield


def seen(db: Harness, held: Held, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Everything that is to be seen of a job, without what differs between two that are alike.

    Times become their ranks: what is at the same moment, before or after what else.
    """
    row = "to_jsonb(j) - '{id, result, queue}'::text[] as row, result"
    rows = db.sql(
        f"select {row} from tenure.job j where id = %s union all select {row} from tenure.job_done j where id = %s",
        held.id, held.id,
    )  # fmt: skip
    log = db.sql("select to_jsonb(e) - 'job_id' as event from tenure.event e where job_id = %s order by seq", held.id)
    found = {
        "live": db.value("select count(*) from tenure.job where id = %s", held.id),
        "letters": db.value("select count(*) from tenure.dead_letter where job_id = %s", held.id),
        "rows": rows,
        "log": log,
        "answers": [_plain(one) for one in outcomes],
    }
    times: set[datetime] = set()
    _walk(found, times.add)
    ranks = {time: f"moment {rank}" for rank, time in enumerate(sorted(times))}
    plain: dict[str, Any] = _walk(found, ranks.__getitem__)
    return plain


def _plain(outcome: Outcome) -> Any:
    if isinstance(outcome, Refused):
        return type(outcome).__name__, outcome.reason_code, re.sub(r"\d+", "N", str(outcome))
    return outcome._asdict() | {"job_id": None}


_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


def _walk(value: Any, on_time: Callable[[datetime], Any]) -> Any:
    """The same value without its tokens, and with every time in it given to a function."""
    if isinstance(value, dict):
        return {key: _walk(part, on_time) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_walk(part, on_time) for part in value]
    if isinstance(value, str):
        return on_time(datetime.fromisoformat(value)) if _TIME.match(value) else _UUID.sub("a token", value)
    return on_time(value) if isinstance(value, datetime) else value
