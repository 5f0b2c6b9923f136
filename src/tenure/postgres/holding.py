"""What holders say of their jobs, many at a time: each is answered with what became of it, or refused by itself.

A batch that meets a lock timeout goes on without the locked rows, so that nobody's open transaction stalls its
neighbours. A batch that takes several statements may be done in part when the database goes away: whoever was in a part
that was not begun is told so, and the others have their answers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tenure import intake
from tenure.errors import BadInput, Busy, Refused, TenureError
from tenure.job import Failure, Held
from tenure.outcome import Effect, Moved, Noted, Outcome
from tenure.postgres import notes, verbs
from tenure.postgres.engine import Engine, ask
from tenure.postgres.gate import Batch, of
from tenure.postgres.machine import Machine
from tenure.postgres.statement import carried

#: Idempotency keys of a batch, one per job, or none at all.
Keys = Sequence[str | None] | None
_HANDED_BACK = '{"type": "HandedBack", "message": "handed back unfinished", "code": "HANDED_BACK"}'


async def start(engine: Engine, held: Sequence[Held], keys: Keys) -> list[Outcome | None]:
    """Say that these handlers begin; None under a contract without that step."""
    _check_keys(held, keys)

    async def begin(machine: Machine, part: Sequence[int]) -> Sequence[Outcome | None]:
        if machine.contract.path("start") is None:
            return [None] * len(part)
        return await _finish(engine, machine, "start", _batch(held, part, keys))

    return await engine.by_contract(held, begin)


async def succeed(
    engine: Engine, held: Sequence[Held], results: Sequence[Any] | None, keys: Keys, max_bytes: int
) -> list[Outcome]:
    """End jobs well."""
    _same_length(held, results, "results")
    _check_keys(held, keys)
    texts = None if results is None else [_result(result, max_bytes) for result in results]

    async def end(machine: Machine, part: Sequence[int]) -> list[Any]:
        if texts is None:
            return await _finish(engine, machine, "succeed", _batch(held, part, keys))
        outcomes: list[Any] = []
        for places in carried(part, texts):
            batch = _batch(held, places, keys)
            batch.results = [texts[n] for n in places]
            try:
                outcomes += await _finish(engine, machine, "succeed", batch)
            except TenureError as error:
                if not outcomes:
                    raise
                outcomes += [error] * len(places)  # the parts before it are done
        return outcomes

    return await engine.by_contract(held, end)


async def fail(
    engine: Engine, held: Sequence[Held], failures: Sequence[Failure | BaseException], keys: Keys, max_bytes: int
) -> list[Outcome]:
    """Report failures, as such or as the exceptions that were raised."""
    _same_length(held, failures, "failures")
    _check_keys(held, keys)
    facts = [_failure(failure) for failure in failures]

    async def tell(machine: Machine, part: Sequence[int]) -> list[Outcome]:
        batch = _batch(held, part, keys)
        verbs.tell(batch, machine, [facts[n] for n in part], max_bytes)
        return await _finish(engine, machine, "fail", batch)

    return await engine.by_contract(held, tell)


async def report(
    engine: Engine,
    verb: str,
    held: Held,
    events: Sequence[Any],
    *,
    result: Any,
    failure: Failure | None,
    key: str | None,
    max_bytes: int,
) -> list[Outcome]:
    """End a held job by succeed, fail or cancel, and keep the events that its holder reports: both, or neither."""
    keys = one_key(key)
    bodies = [intake.document("event", event, max_bytes) for event in events]

    async def end(machine: Machine, part: Sequence[int]) -> list[Outcome]:
        batch = _batch([held], part, keys)
        batch.notes = [f"[{','.join(bodies)}]"]  # what a repeat must have in common
        if failure is not None:
            verbs.tell(batch, machine, [failure], max_bytes)
        elif result is not None:
            batch.results = [_result(result, max_bytes)]
        return await engine.run(lambda: verbs.report(machine, verb, batch, bodies))

    return await engine.by_contract([held], end)


async def compensated(engine: Engine, held: Held, key: str | None) -> list[Outcome]:
    """The effects that a failure named are undone: the job ends as it failed."""
    one_key(key)
    return await engine.by_contract(
        [held], lambda machine, _: engine.run(lambda: verbs.compensated(machine, held, key))
    )


async def compensation_failed(
    engine: Engine, held: Held, failure: Failure | BaseException, key: str | None, max_bytes: int
) -> list[Outcome]:
    """The effects could not be undone: the job is set aside for a person to look at."""
    fact, keys = _failure(failure), one_key(key)

    async def end(machine: Machine, part: Sequence[int]) -> list[Outcome]:
        batch = _batch([held], part, keys)
        batch.errors = [intake.document("error", dict(fact.facts()), max_bytes)]
        return await _finish(engine, machine, "compensation_failed", batch)

    return await engine.by_contract([held], end)


async def note(
    engine: Engine,
    verb: str,
    held: Sequence[Held],
    values: Sequence[str] | None = None,
    *,
    keys: Keys = None,
    skip_locked: bool = False,
) -> list[Noted | Refused]:
    """Say that the work goes on, or how far it is."""

    async def say(machine: Machine, part: Sequence[int]) -> list[Noted | Refused]:
        batch = _batch(held, part, keys)
        batch.notes = None if values is None else [values[n] for n in part]
        return await engine.run(lambda: notes.note(machine, verb, batch, {}, skip_locked=skip_locked))

    return await engine.by_contract(held, say)


async def effect(
    engine: Engine, held: Held, node: str, result: Any, *, compensable: bool, max_bytes: int
) -> list[Effect | Refused]:
    """Record that a node has had its effect, under the lease: once per job, over all attempts."""
    intake.name("node", node)
    text = _result(result, max_bytes)

    async def record(machine: Machine, part: Sequence[int]) -> list[Effect | Refused]:
        if compensable and not machine.contract.compensates:
            raise BadInput(f"contract {machine.contract.name} undoes no effects; record it without compensable")
        return [await engine.run(lambda: notes.effect(machine, held, node, text, compensable=compensable))]

    return await engine.by_contract([held], record)


async def undone(engine: Engine, held: Held, node: str) -> list[Refused | None]:
    """Record that a node's effect is undone."""
    intake.name("node", node)

    async def record(machine: Machine, part: Sequence[int]) -> list[Refused | None]:
        return [await engine.run(lambda: notes.undone(machine, held, node))]

    return await engine.by_contract([held], record)


async def effects(engine: Engine, job_id: int) -> dict[str, Any]:
    """The nodes of a job that have had their effect, newest first, with what came of each."""
    intake.whole("id", job_id, 1, intake.MAX_ID)
    rows = await engine.run(lambda: ask("effects", {"id": job_id}))
    return {node: None if result is None else json.loads(result) for node, result, _ in rows}


async def snooze(engine: Engine, held: Sequence[Held], delays_ms: Sequence[int], keys: Keys) -> list[Outcome]:
    """Put jobs off."""
    _check_delays(held, delays_ms)
    _check_keys(held, keys)

    async def put_off(machine: Machine, part: Sequence[int]) -> list[Outcome]:
        batch = _batch(held, part, keys)
        batch.delays = [delays_ms[n] for n in part]
        return await _finish(engine, machine, "snooze", batch)

    return await engine.by_contract(held, put_off)


async def hand_back(
    engine: Engine, held: Sequence[Held], delays_ms: Sequence[int], reasons: Sequence[str | None], keys: Keys
) -> list[Moved | Noted | Refused]:
    """Give jobs back: by the contract's own path, with the reason, else as if their leases had run out."""
    _check_delays(held, delays_ms)
    _check_reasons(held, reasons)
    _check_keys(held, keys)

    async def let_go(machine: Machine, part: Sequence[int]) -> Sequence[Moved | Noted | Refused]:
        batch = _batch(held, part, keys)
        if machine.reclaims:  # the next claim takes it in place, once the lease is over
            batch.keys = None  # letting go twice is letting go
            return await engine.run(lambda: notes.note(machine, "let_go", batch, {}))
        batch.delays = [delays_ms[n] for n in part]
        if machine.moves["hand_back"]["hands_back"]:
            batch.reasons = [reasons[n] for n in part]
        else:
            batch.errors = [_HANDED_BACK] * len(part)
        return await _finish(engine, machine, "hand_back", batch)

    return await engine.by_contract(held, let_go)


async def cancelled(engine: Engine, held: Sequence[Held], reasons: Sequence[str | None], keys: Keys) -> list[Outcome]:
    """End jobs as cancelled, by their holders."""
    _check_reasons(held, reasons)
    _check_keys(held, keys)

    async def end(machine: Machine, part: Sequence[int]) -> list[Outcome]:
        batch = _batch(held, part, keys)
        batch.reasons = [reasons[n] for n in part]
        return await _finish(engine, machine, "cancel", batch)

    return await engine.by_contract(held, end)


def one_key(key: str | None) -> Keys:
    """The keys of a batch of one."""
    return None if key is None else [intake.name("key", key)]


async def _finish(engine: Engine, machine: Machine, verb: str, batch: Batch) -> list[Outcome]:
    try:
        return await engine.run(lambda: verbs.finish(machine, verb, batch))
    except Busy:
        # Somebody's open transaction keeps a row: go on without it, so that its neighbours need not wait.
        return await engine.run(lambda: verbs.finish(machine, verb, batch, skip_locked=True))


def _batch(held: Sequence[Held], part: Sequence[int], keys: Keys) -> Batch:
    batch = of([held[n] for n in part])
    batch.keys = None if keys is None else [keys[n] for n in part]
    return batch


def _result(value: Any, max_bytes: int) -> str | None:
    return None if value is None else intake.document("result", value, max_bytes)


def _failure(given: Any) -> Failure:
    if isinstance(given, BaseException):
        return Failure.of(given)
    if not isinstance(given, Failure):
        raise BadInput(f"give a Failure or the exception that was raised, not {given!r}")
    return given


def _check_keys(held: Sequence[Held], keys: Keys) -> None:
    _same_length(held, keys, "keys")
    for key in keys or ():
        if key is not None:
            intake.name("key", key)


def _check_delays(held: Sequence[Held], delays_ms: Sequence[int]) -> None:
    _same_length(held, delays_ms, "delays")
    for delay in delays_ms:
        intake.whole("delay_ms", delay, 0, intake.MAX_DELAY_MS)


def _check_reasons(held: Sequence[Held], reasons: Sequence[str | None]) -> None:
    _same_length(held, reasons, "reasons")
    for reason in reasons:
        if reason is not None:
            intake.name("reason", reason)


def _same_length(held: Sequence[Held], values: Sequence[Any] | None, what: str) -> None:
    if values is not None and len(values) != len(held):
        raise BadInput(f"{len(held)} jobs with {len(values)} {what}: give one for each")
