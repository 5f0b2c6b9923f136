"""More contradictions that are refused where a contract is declared, and changes that no later version may make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import Contract, DeadLetterRules, Hop, Path, Retryable, View
from tenure.contracts.notation import path, states
from tenure.contracts.numbers import Heartbeat, Jitter
from tenure.contracts.stored_form import from_description
from tenure.contracts.versions import breaking_changes
from tenure.errors import Unsound

PHASE27, RELIABILITY, STANDARD = BUILT_IN["phase27"], BUILT_IN["reliability"], BUILT_IN["standard"]

Break = Callable[[], object]

_STATES = states(asked="ready", given="leased", doing="active", made="done", spoilt="done")


def lost_work(*ways: Path) -> Contract:
    """A contract with two held states, in which a lost worker's job goes these ways."""
    return replace(
        PHASE27,
        states=_STATES,
        initial="asked",
        paths=(
            path("claim", "asked > given"),
            path("start", "given > doing"),
            path("succeed", "doing > made"),
            path("retry", "doing > asked", due="backoff"),
            path("exhaust", "doing > spoilt"),
            path("expire_at_cap", "given|doing > spoilt"),
            *ways,
        ),
        counter=replace(PHASE27.counter, on=("claim",)),
        views=(),
        events=(),
    )


def cancelled_from(contract: Contract, *sources: str, modes: tuple[str, ...] = ("soft",)) -> Contract:
    """The contract with these cancel modes, and with a cancel path from these states alone."""
    end = Hop("failed" if contract is PHASE27 else "cancelled", "done")
    others = tuple(path for path in contract.paths if path.trigger != "cancel")
    added = (Path("cancel", sources, (end,)),) if sources else ()
    return replace(contract, paths=(*others, *added), cancel_modes=modes)


def foreign(contract: Contract, part: str, name: str, value: object) -> Contract:
    """The contract with a value that only a foreign description, or a slip, can bring in."""
    declared = contract.describe()
    if name:
        declared[part][name] = value
    else:
        declared[part] = value
    return from_description(declared)


def faults_of(broken: Break) -> list[str]:
    """What the refusal says."""
    with pytest.raises(Unsound) as refusal:
        broken()
    return refusal.value.faults


def untyped(value: object) -> Any:
    """A value that a type checker would refuse."""
    return value


RECLAIMED = "expires, while another state is reclaimed; a contract does one or the other"

CASES: Mapping[str, tuple[Break, list[str]]] = {
    "reclaim in one held state and expire in the other": (
        lambda: lost_work(path("reclaim", "doing > doing"), path("expire", "given > asked", due="now")),
        [f"state given: {RECLAIMED}"],
    ),
    "expire in one held state and reclaim in the other": (
        lambda: lost_work(path("reclaim", "given > given"), path("expire", "doing > asked", due="now")),
        [f"state doing: {RECLAIMED}"],
    ),
    "a cancel mode without a cancel path": (
        lambda: replace(PHASE27, cancel_modes=("soft",)),
        ["state running: can be cancelled by mode, but no cancel path leads on"],
    ),
    "a cancel mode without a cancel path from one of two held states": (
        lambda: cancelled_from(RELIABILITY, "queued", "running", modes=("hard",)),
        ["state assigned: can be cancelled by mode, but no cancel path leads on"],
    ),
    "a cause in a log that does not keep it": (
        lambda: replace(RELIABILITY, indexed_log=False),
        ["events show their cause, which only an indexed log keeps; declare indexed_log"],
    ),
    "a cause that would be no event": (
        lambda: replace(RELIABILITY, events=RELIABILITY.events[1:]),
        ["events show their cause, but claim shows as no event"],
    ),
    "an unknown cancel mode": (
        lambda: cancelled_from(PHASE27, "queued", "running", modes=("soft", "gentle")),
        ["cancel: unknown mode 'gentle'; modes are soft and hard"],
    ),
    "an unknown form of jitter": (
        lambda: replace(
            PHASE27, backoff=replace(PHASE27.backoff, jitter=Jitter(form=untyped("divide"), low=1, high=2))
        ),
        ["jitter: unknown form 'divide'; forms are multiply and add"],
    ),
    "an unknown rule of what is retried": (
        lambda: replace(PHASE27, retryable=Retryable(untyped("sometimes"))),
        ["retryable: unknown rule 'sometimes'; rules are any, flag, class"],
    ),
    "a view whose name is no name": (
        lambda: replace(PHASE27, views=(View("Tasks; drop", "jobs", {"task_id": "id"}),)),
        ["view Tasks; drop: 'Tasks; drop' must be lower case letters, digits and _, at most 40"],
    ),
    "a view with a column whose name is no name": (
        lambda: replace(PHASE27, views=(View("tasks", "jobs", {'id" int, "x': "id"}),)),
        ["""view tasks: 'id" int, "x' must be lower case letters, digits and _, at most 40"""],
    ),
    "an arrow in a way": (
        lambda: path("claim", "queued -> running"),
        ["path claim: write 'queued -> running' with > between the states"],
    ),
    "a typographic arrow in a way": (
        lambda: path("claim", "queued → running"),
        ["path claim: write 'queued → running' with > between the states"],
    ),
    "a counter on a text": (
        lambda: replace(PHASE27, counter=replace(PHASE27.counter, on=untyped("claim"))),
        ["counter attempt: counts on a tuple of triggers, so write ('claim',)"],
    ),
    "a lease that is a text": (
        lambda: replace(PHASE27, lease=replace(PHASE27.lease, seconds=untyped("60"))),
        ["lease_ms must be a whole number, not '60'"],
    ),
    "a lease that is yes": (
        lambda: replace(PHASE27, lease=replace(PHASE27.lease, seconds=untyped(True))),
        ["lease_ms must be a whole number, not True"],
    ),
    "a limit that is half": (
        lambda: replace(PHASE27, budget=replace(PHASE27.budget, default=untyped(2.5))),
        ["max_attempts must be a whole number, not 2.5"],
    ),
    "a version that is a number": (
        lambda: replace(PHASE27, version=untyped(2)),
        ["version 2 must be a text of 1 to 40 characters"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_contract_is_refused_for(what: str) -> None:
    broken, faults = CASES[what]
    assert faults_of(broken) == faults


FOREIGN: Mapping[str, tuple[str, str, object, str]] = {
    "jitter": ("backoff", "jitter", {"form": "divide", "low": 1, "high": 2}, "unknown form 'divide'"),
    "rule": ("retryable", "rule", "sometimes", "unknown rule 'sometimes'"),
    "lease": ("lease", "default_ms", "60000", "lease_ms must be a whole number"),
    "version": ("version", "", 2, "version 2 must be a text"),
    "cancel": ("cancel_modes", "", ["gentle"], "unknown mode 'gentle'"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_description_is_refused_for_the_same_faults(what: str) -> None:
    part, name, value, said = FOREIGN[what]
    assert said in faults_of(lambda: foreign(PHASE27, part, name, value))[0]


def test_either_way_back_is_sound_in_both_held_states() -> None:
    assert lost_work(path("reclaim", "given|doing > doing")).path("reclaim")
    assert lost_work(path("expire", "given|doing > asked", due="now")).path("expire")
    assert cancelled_from(PHASE27, "queued", "running", modes=("soft", "hard")).cancel_modes == ("soft", "hard")


def reclaiming(contract: Contract) -> Contract:
    """The contract with reclaim in the place of expire."""
    others = tuple(path for path in contract.paths if path.trigger != "expire")
    events = tuple(event for event in contract.events if event.on != ("expire",))
    return replace(contract, paths=(*others, path("reclaim", "running > running")), events=events)


BEAT = Heartbeat(seconds=5, minimum_seconds=1, maximum_seconds=60, missed=3)

CHANGES: Mapping[str, tuple[Contract, Contract, str]] = {
    "a new way to reclaim": (STANDARD, reclaiming(STANDARD), "expired jobs are reclaimed in place now"),
    "more executions for the same limit": (
        STANDARD, replace(STANDARD, budget=replace(STANDARD.budget, extra=1)),
        "executions beyond the limit changed from 0 to 1",
    ),
    "a lease that is forfeited": (
        STANDARD, replace(STANDARD, lease=replace(STANDARD.lease, after_expiry="forfeited")),
        "what an expired lease may still do changed from valid_until_taken to forfeited",
    ),
    "a new heartbeat": (
        STANDARD, replace(STANDARD, lease=replace(STANDARD.lease, heartbeat=BEAT)),
        "whether missed heartbeats orphan a job changed from True to False",
    ),
    "a heartbeat that is gone": (
        replace(STANDARD, lease=replace(STANDARD.lease, heartbeat=BEAT)), STANDARD,
        "whether missed heartbeats orphan a job changed from False to True",
    ),
    "dead letters where there were none": (
        PHASE27, replace(PHASE27, dead_letters=DeadLetterRules("record")),
        "how dead letters are written changed from none to record",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_later_version_is_refused_for(what: str) -> None:
    old, new, said = CHANGES[what]
    found = list(breaking_changes(old, replace(new, version="2")))
    assert said in found
    # Nothing else is found, but for the path and event that reclaiming took the place of.
    assert all("expire" in other for other in found if other != said)


def test_other_numbers_of_the_same_beat_are_an_additive_change() -> None:
    old = replace(STANDARD, lease=replace(STANDARD.lease, heartbeat=BEAT))
    new = replace(old, version="2", lease=replace(old.lease, heartbeat=replace(BEAT, seconds=2)))
    assert list(breaking_changes(old, new)) == []
