"""A contract that contradicts itself is refused where it is declared, with what is wrong and where.

Each case takes a contract that is sound, breaks one thing, and expects exactly the faults that follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import (
    ROLES,
    TRIGGERS,
    Contract,
    DeadLetterRules,
    Hop,
    Path,
    Retryable,
    RetryVerdict,
    View,
)
from tenure.contracts.notation import path
from tenure.contracts.stored_form import from_description
from tenure.errors import ContractError, Unsound

PHASE27, DISPATCHER, GATE_B2 = BUILT_IN["phase27"], BUILT_IN["dispatcher"], BUILT_IN["gate_b2"]
RELIABILITY, SIMPLE, STANDARD = BUILT_IN["reliability"], BUILT_IN["simple"], BUILT_IN["standard"]

Break = Callable[[], Contract]


def adding(contract: Contract, trigger: str, way: str, **options: Any) -> Contract:
    """The contract with one more path."""
    return replace(contract, paths=(*contract.paths, path(trigger, way, **options)))


def without(contract: Contract, *triggers: str) -> Contract:
    """The contract without the paths of these triggers."""
    return replace(contract, paths=tuple(path for path in contract.paths if path.trigger not in triggers))


def instead(contract: Contract, trigger: str, way: str, **options: Any) -> Contract:
    """The contract with another path in the place of a trigger's own."""
    others = tuple(path for path in contract.paths if path.trigger != trigger)
    return replace(contract, paths=(*others, path(trigger, way, **options)))


def knowing(contract: Contract, state: str, *roles: Any) -> Contract:
    """The contract with one more state, or with other roles for one that it has."""
    return replace(contract, states={**contract.states, state: tuple(roles)})


def described(contract: Contract, change: Callable[[dict[str, Any]], None]) -> Contract:
    """The contract rebuilt from its changed description, as the registry would."""
    declared = contract.describe()
    change(declared)
    return from_description(declared)


def showing(contract: Contract, columns: Mapping[str, str], objects: Mapping[str, Mapping[str, str]]) -> Contract:
    """The contract with one view of jobs."""
    return replace(contract, views=(View("tasks", "jobs", columns, objects),))


def faults_of(broken: Break) -> list[str]:
    """What the refusal says."""
    with pytest.raises(Unsound) as refusal:
        broken()
    assert isinstance(refusal.value, ContractError)
    assert isinstance(refusal.value, ValueError)
    assert all(fault in str(refusal.value) for fault in refusal.value.faults)
    return refusal.value.faults


NO_WAY_BACK = "from where the job can never be claimed again"

STATES_AND_HOPS: Mapping[str, tuple[Break, list[str]]] = {
    "a hop into an undeclared state": (
        lambda: adding(PHASE27, "cancel", "queued|running > cancelled:done"), ["path cancel: unknown state cancelled"],
    ),
    "a hop out of an undeclared state": (
        lambda: adding(PHASE27, "cancel", "paused > failed"), ["path cancel: unknown source state paused"],
    ),
    "a state that nothing reaches": (
        lambda: knowing(STANDARD, "archived", "done"), ["state archived is never reached as done"],
    ),
    "a role in which nothing reaches a state": (
        lambda: knowing(STANDARD, "dead", "done", "settling"),
        ["state dead is never reached as settling"],
    ),
    "a done state with a way out": (
        lambda: adding(PHASE27, "dead_letter", "completed > failed"),
        ["path dead_letter: leaves completed, which is done; a finished job never changes"],
    ),
    "a hop that does not say in which of several roles": (
        lambda: instead(DISPATCHER, "exhaust", "Running > Failed"),
        ["path exhaust: Failed has several roles; say which, as Failed:role",
         "path exhaust: ends in Failed, which is not final and does not settle"],
    ),
    "a hop into a role that the state never has": (
        lambda: adding(PHASE27, "cancel", "queued > failed:settling"),
        ["path cancel: failed is never settling",
         "path cancel: ends in failed, which is not final and does not settle"],
    ),
    "a path without a hop": (
        lambda: replace(PHASE27, paths=(*PHASE27.paths, Path("start", ("queued",), ()))), ["path start: no hop"],
    ),
    "an unknown trigger": (
        lambda: adding(PHASE27, "explode", "running > failed"),
        [f"path explode: unknown trigger; triggers are {', '.join(sorted(TRIGGERS))}. "
         "Any other is a person's decision, for which running does not wait"],
    ),
    "an unknown role": (
        lambda: knowing(PHASE27, "queued", "ready", "sleeping"),
        [f"state queued has the unknown role 'sleeping'; roles are {', '.join(ROLES)}",
         "state queued is never reached as sleeping"],
    ),
    "a state without a role": (lambda: knowing(PHASE27, "paused"), ["state paused has no role"]),
    "the same path twice": (
        lambda: adding(PHASE27, "succeed", "running > completed"), ["path succeed: declared twice from running"],
    ),
    "a path through a step that is not settling": (
        lambda: instead(SIMPLE, "retry", "RUNNING > FAILED:done > PENDING", due="backoff"),
        ["path retry: passes through FAILED as done; a step inside a path is settling"],
    ),
    "an initial state that is not declared": (
        lambda: replace(PHASE27, initial="new"), ["initial state new is not declared"],
    ),
    "an initial state that is not ready": (
        lambda: replace(PHASE27, initial="running"),
        ["initial state running is not ready, and does not wait for a decision either"],
    ),
    "a name that SQL would have to quote": (
        lambda: replace(PHASE27, name="Phase 27"),
        ["name 'Phase 27' must be lower case letters, digits and _, at most 40"],
    ),
    "no version": (lambda: replace(PHASE27, version=""), ["version '' must be a text of 1 to 40 characters"]),
    "a state whose name is no word": (
        lambda: knowing(PHASE27, "not-a-word", "done"),
        ["state 'not-a-word' must be letters, digits and _, at most 40", "state not-a-word is never reached as done"],
    ),
}  # fmt: skip

LIVES: Mapping[str, tuple[Break, list[str]]] = {
    "an exhaust that does not end": (
        lambda: instead(PHASE27, "exhaust", "running > queued"),
        ["path exhaust: ends in queued, which is not final and does not settle",
         "path exhaust: falls from running back to queued inside an epoch"],
    ),
    "an exhaust that settles where no settle path leads on": (
        lambda: instead(SIMPLE, "exhaust", "RUNNING > FAILED:settling"),
        ["path exhaust: ends in FAILED, which is not final and does not settle"],
    ),
    "a retry that ends": (
        lambda: instead(PHASE27, "retry", "running > failed"), [f"path retry: ends in failed, {NO_WAY_BACK}"],
    ),
    "retries that wait for a promote that does not exist": (
        lambda: without(DISPATCHER, "promote"),
        ["state Failed is waiting, but nothing ends its wait: for a time, write path('promote', 'Failed > STATE'); "
         "for a person's decision, a path of your own words, as path('approve', 'Failed > STATE')",
         f"path retry: ends in Failed, {NO_WAY_BACK}", f"path expire: ends in Failed, {NO_WAY_BACK}",
         "counter attempt: counts on promote, but no path has that trigger"],
    ),
    "a promote that does not make ready": (
        lambda: adding(DISPATCHER, "promote", "Failed > Running", choice="at once"),
        ["path promote: ends in Running, which is not ready"],
    ),
    "a retry without an exhaust": (
        lambda: without(PHASE27, "exhaust"),
        ["state running: retries, but no exhaust path ends it; write path('exhaust', 'running > STATE')",
         "event task.failed: is emitted on exhaust, which this contract does not have"],
    ),
    "a ready state that no claim takes": (
        lambda: instead(GATE_B2, "claim", "queued > running"),
        ["state retrying is ready, but no claim path takes it; write path('claim', 'retrying > STATE')"],
    ),
    "a claim of two hops": (
        lambda: instead(RELIABILITY, "claim", "queued > assigned > running"),
        ["path claim: passes through assigned as leased; a step inside a path is settling",
         "path claim: must be one hop into a leased or active state"],
    ),
    "a claim into a state that nobody holds": (
        lambda: adding(PHASE27, "claim", "queued > failed", choice="never"),
        ["path claim: must be one hop into a leased or active state"],
    ),
    "a leased state that nothing starts": (
        lambda: described(RELIABILITY, lambda d: d["states"].update(running=["active", "leased"])),
        ["state running is never reached as leased",
         "state running is leased, but no start path leads on; write path('start', 'running > STATE')"],
    ),
    "an active state that cannot succeed": (
        lambda: described(RELIABILITY, lambda d: d["states"].update(assigned=["leased", "active"])),
        ["state assigned is never reached as active",
         "state assigned is active, but no succeed path leads on; write path('succeed', 'assigned > STATE')",
         "retryable: class TransientError leads to retry, but assigned has no such path; "
         "write path('retry', 'assigned > STATE')",
         "retryable: class PermanentError leads to fatal, but assigned has no such path; "
         "write path('fatal', 'assigned > STATE')"],
    ),
    "a dead worker's job without a way back": (
        lambda: without(PHASE27, "reclaim"),
        ["state running: a dead worker's job has no way back (no expire or reclaim path); "
         "write path('expire', 'running > STATE')",
         "counter attempt: counts on reclaim, but no path has that trigger",
         "event task.running: is emitted on reclaim, which this contract does not have"],
    ),
    "a dead worker's last claim without an end": (
        lambda: instead(RELIABILITY, "expire_at_cap", "running > dead_lettered", letter="timeout"),
        ["state assigned: a dead worker's last claim has no end (no expire_at_cap path); "
         "write path('expire_at_cap', 'assigned > STATE')"],
    ),
    "a start that falls back inside an epoch": (
        lambda: adding(RELIABILITY, "start", "assigned > queued", choice="again"),
        ["path start: falls from assigned back to queued inside an epoch"],
    ),
    "a cancel that falls back inside an epoch": (
        lambda: adding(RELIABILITY, "cancel", "running > queued", choice="again"),
        ["path cancel: ends in queued, which is not final and does not settle",
         "path cancel: falls from running back to queued inside an epoch"],
    ),
    "a start that stays where it is": (
        lambda: adding(RELIABILITY, "start", "running > running", choice="again"),
        ["path start: falls from running back to running inside an epoch"],
    ),
}  # fmt: skip

RECORDS: Mapping[str, tuple[Break, list[str]]] = {
    "a counter on promote without a promote path": (
        lambda: replace(PHASE27, counter=replace(PHASE27.counter, on=("promote",))),
        ["counter attempt: counts on promote, but no path has that trigger"],
    ),
    "a failed that is reached around the staged record": (
        lambda: adding(GATE_B2, "cancel", "queued > failed"),
        ["path cancel: reaches failed around the dead-letter record"],
    ),
    "a staged record that is written outside of settle": (
        lambda: instead(GATE_B2, "exhaust", "running > dlq_pending", letter="exhausted_retries"),
        ["path exhaust: a staged dead letter is written by settle alone"],
    ),
    "a dead that is reached around the record": (
        lambda: instead(STANDARD, "exhaust", "running > dead"),
        ["path exhaust: reaches dead around the dead-letter record"],
    ),
    "a letter under a contract that keeps none": (
        lambda: instead(PHASE27, "exhaust", "running > failed", letter="exhausted_retries"),
        ["path exhaust: writes a dead letter, but the contract keeps none"],
    ),
    "a letter for an undeclared reason": (
        lambda: instead(RELIABILITY, "expire_at_cap", "assigned|running > dead_lettered", letter="bad_luck"),
        ["dead letter reason 'bad_luck' is not one of the declared reasons"],
    ),
    "a letter of a job that goes on": (
        lambda: instead(STANDARD, "retry", "running > queued", due="backoff", letter="exhausted"),
        ["path retry: writes a dead letter of a job that goes on in queued"],
    ),
    "an error class that leads to no answer": (
        lambda: replace(STANDARD, retryable=Retryable("class", {"Odd": RetryVerdict("succeed")})),
        ["retryable: class Odd leads to succeed, which is no answer to an error"],
    ),
    "a compensation that the log would not tell of": (
        lambda: replace(RELIABILITY, facts=("heartbeat", "renewed"), events=tuple(
            event for event in RELIABILITY.events if not {"compensating", "compensated"} & set(event.on)
        )),
        ["compensations are made, but facts does not name compensating: the log would not tell when one began"],
    ),
    "a promotion of a job that does not wait": (
        lambda: adding(DISPATCHER, "promote", "Running > Queued"),
        ["path promote: leaves Running, where nobody waits for a time"],
    ),
    "an event with a key for an unknown field": (
        lambda: described(PHASE27, lambda d: d["events"][1]["keys"].update(mood="happiness")),
        ["event task.completed: key mood names the unknown field happiness"],
    ),
    "an event on a trigger that the contract does not have": (
        lambda: described(PHASE27, lambda d: d["events"][1]["on"].append("snooze")),
        ["event task.completed: is emitted on snooze, which this contract does not have"],
    ),
    "an event on an end that no type can choose": (
        lambda: described(RELIABILITY, lambda d: d["events"][3]["on"].append("exhaust>cancelled")),
        ["event job_failed: is emitted on exhaust>cancelled, which this contract does not have"],
    ),
    "a view with a column for an unknown field": (
        lambda: showing(PHASE27, {"task_id": "id", "mood": "happiness"}, {}),
        ["view tasks: column mood names the unknown field happiness"],
    ),
    "a view with an object that is no column": (
        lambda: showing(PHASE27, {"task_id": "id"}, {"last_error": {"ts": "error_ts"}}),
        ["view tasks: object last_error is not one of its columns"],
    ),
    "a view with an object key for an unknown field": (
        lambda: showing(PHASE27, {"last_error": "error"}, {"last_error": {"mood": "happiness"}}),
        ["view tasks: key last_error.mood names the unknown field happiness"],
    ),
}  # fmt: skip

CASES = {**STATES_AND_HOPS, **LIVES, **RECORDS}


@pytest.mark.parametrize("what", CASES)
def test_contract_is_refused_for(what: str) -> None:
    broken, faults = CASES[what]
    assert faults_of(broken) == faults


#: What the message must name where its whole wording is not fixed: the broken part, and where it stands.
NAMED: Mapping[str, tuple[Break, str]] = {
    "a staged contract whose settle writes no record": (
        lambda: instead(GATE_B2, "settle", "dlq_pending > dlq_recorded > failed"), "path settle",
    ),
    "an error class whose verdict no path answers": (
        lambda: replace(PHASE27, retryable=Retryable("class", {"PermanentError": RetryVerdict("fatal")})), "fatal",
    ),
    "errors judged by their flag where no fatal path exists": (
        lambda: replace(PHASE27, retryable=Retryable("flag")), "fatal",
    ),
    "a verdict with an undeclared reason": (
        lambda: replace(RELIABILITY, retryable=Retryable("class", {"E": RetryVerdict("dead_letter", "bad_luck")})),
        "bad_luck",
    ),
    "a view of rows that do not exist": (
        lambda: described(PHASE27, lambda d: d["views"][0].update(rows="moods")), "view tasks",
    ),
    "two views of one name": (lambda: replace(PHASE27, views=(*PHASE27.views, PHASE27.views[0])), "view tasks"),
    "an unknown rule for the due time": (lambda: instead(PHASE27, "retry", "running > queued", due="soon"), "soon"),
    "an unknown kind of dead letters": (lambda: replace(PHASE27, dead_letters=bad_letters("buried")), "buried"),
}  # fmt: skip


def bad_letters(mode: str) -> DeadLetterRules:
    """A way of keeping dead letters that only a foreign description can name."""
    return DeadLetterRules(mode)  # type: ignore[arg-type]


@pytest.mark.parametrize("what", NAMED)
def test_refusal_names_what_is_wrong_with(what: str) -> None:
    broken, named = NAMED[what]
    assert any(named in fault for fault in faults_of(broken))


def test_every_fault_is_said_at_once() -> None:
    stray = Path("cancel", ("paused",), (Hop("gone", "done"),))
    with pytest.raises(Unsound) as refusal:
        replace(PHASE27, paths=(*PHASE27.paths, stray), knobs={"TASK_MOOD": "happiness"}, version="")
    assert refusal.value.faults == [
        "version '' must be a text of 1 to 40 characters",
        "path cancel: unknown source state paused",
        "path cancel: unknown state gone",
        "knob TASK_MOOD sets the unknown number happiness",
    ]
    first, *lines = str(refusal.value).splitlines()
    assert first == "contract phase27 is not sound:"
    assert lines == [f"  - {fault}" for fault in refusal.value.faults]


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_contract_is_sound_and_stays_so_with_its_own_numbers(name: str) -> None:
    contract = BUILT_IN[name]
    numbers = {number: value for number, value in contract.numbers().items() if value is not None}
    assert contract.with_numbers(numbers) == contract
