"""Contracts that are broken on purpose: one that comes with Tenure, with one thing changed.

Most are refused where they are declared; `Unsound` carries the declaration, so that it can be explored all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import Contract, Path, Retryable, RetryVerdict, Role
from tenure.contracts.notation import path
from tenure.errors import Unsound

STANDARD, PHASE27, DISPATCHER = BUILT_IN["standard"], BUILT_IN["phase27"], BUILT_IN["dispatcher"]
RELIABILITY, SIMPLE, GATE_B2 = BUILT_IN["reliability"], BUILT_IN["simple"], BUILT_IN["gate_b2"]

Change = Callable[[Contract], Contract]


def declared(contract: Contract, *changes: Change) -> Contract:
    """The changed contract, sound or not."""
    for change in changes:
        try:
            contract = change(contract)
        except Unsound as error:
            contract = cast(Contract, error.declared)
    return contract


def without(*triggers: str) -> Change:
    """No path of these triggers."""
    return lambda contract: replace(contract, paths=_others(contract, *triggers))


def instead(trigger: str, way: str, **options: Any) -> Change:
    """One path in the place of a trigger's own."""
    return lambda contract: replace(contract, paths=(*_others(contract, trigger), path(trigger, way, **options)))


def also(trigger: str, way: str, **options: Any) -> Change:
    """One more path."""
    return lambda contract: replace(
        contract, paths=(*contract.paths, path(trigger, way, **options))
    )  # fmt: skip


def knowing(state: str, *roles: Role) -> Change:
    """One more state."""
    more: Mapping[str, tuple[Role, ...]] = {state: roles}
    return lambda contract: replace(contract, states={**contract.states, **more})


def answering(trigger: str) -> Change:
    """One more class of errors, with this answer to them."""
    return lambda contract: replace(
        contract, retryable=Retryable("class", {**contract.retryable.classes, "OddError": RetryVerdict(trigger)})
    )


def _others(contract: Contract, *triggers: str) -> tuple[Path, ...]:
    return tuple(path for path in contract.paths if path.trigger not in triggers)


#: what was done to it → (the contract, the promise that it breaks, how many steps the shortest story has)
BROKEN: Mapping[str, tuple[Contract, str, int]] = {
    "a claim ends the job": (declared(PHASE27, instead("claim", "queued > completed")), "one lease", 1),
    "a claim leaves the job ready": (declared(STANDARD, instead("claim", "queued > queued")), "one lease", 1),
    "a start falls back": (declared(RELIABILITY, instead("start", "assigned > queued")), "no way back", 2),
    "a success runs again": (declared(STANDARD, instead("succeed", "running > queued")), "no way back", 2),
    "a cancelled job runs again": (declared(STANDARD, instead("cancel", "queued|running > queued")), "no way back", 2),
    "a lost last run goes back to the queue": (
        declared(SIMPLE, instead("expire_at_cap", "RUNNING > PENDING", due="now")), "budget", 3,
    ),
    "a spent budget waits for more": (
        declared(DISPATCHER, instead("exhaust", "Running > Failed:waiting", due="backoff")), "budget", 5,
    ),
    "a running job can be made ready": (
        declared(DISPATCHER, instead("promote", "Failed|Running > Queued", due="now")), "budget", 3,
    ),
    "an error leads to where expiry does": (declared(STANDARD, answering("expire")), "budget", 3),
    "an error puts the job off for ever": (declared(STANDARD, answering("snooze")), "retries", 2),
    "an error is told as a success": (declared(STANDARD, answering("succeed")), "retries", 2),
    "an error gives up too early": (declared(STANDARD, answering("exhaust")), "retries", 2),
    "a spent budget has no end": (declared(STANDARD, without("exhaust")), "retries", 2),
    "a failure has no retry": (declared(PHASE27, without("retry")), "retries", 2),
    "a fatal error has no path": (declared(GATE_B2, without("fatal")), "retries", 2),
    "a compensation that the log may not tell of": (
        declared(RELIABILITY, lambda contract: replace(contract, facts=("heartbeat", "renewed", "compensated"))),
        "one row a hop", 3,
    ),
    "dead without its letter": (declared(STANDARD, instead("fatal", "running > dead")), "letters", 2),
    "a letter for a job that is tried again": (
        declared(STANDARD, instead("retry", "running > queued", letter="operator", due="backoff")), "letters", 3,
    ),
    "a record that is passed over": (
        declared(GATE_B2, instead("settle", "dlq_pending|dlq_recorded > failed")), "letters", 3,
    ),
    "nobody claims": (declared(PHASE27, without("claim")), "an end", 0),
    "nobody claims what is retried": (declared(GATE_B2, instead("claim", "queued > running")), "an end", 3),
    "a retry into a state that nobody leaves": (
        declared(STANDARD, knowing("parked", "waiting"), instead("retry", "running > parked", due="keep")), "an end", 2,
    ),
    "no promote": (declared(DISPATCHER, without("promote")), "an end", 3),
    "no settle": (declared(GATE_B2, without("settle")), "an end", 2),
    "no expire": (declared(STANDARD, without("expire")), "an end", 2),
    "no reclaim": (declared(PHASE27, without("reclaim")), "an end", 2),
    "no expire_at_cap": (declared(RELIABILITY, without("expire_at_cap")), "an end", 2),
    "a soft cancel that is lost with its holder": (
        # In two steps of a handler's work, of which only the first can be cancelled.
        declared(
            RELIABILITY,
            knowing("assigned", "active"),
            instead("claim", "queued > assigned"),
            instead("cancel", "queued|assigned > cancelled"),
        ),
        "an end", 4,
    ),
    "a compensation that is lost with its holder": (
        declared(
            RELIABILITY,
            instead("compensation_failed", "running > dead_lettered", letter="compensation_failed"),
        ),
        "an end", 3,
    ),
}  # fmt: skip
