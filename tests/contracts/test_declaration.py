"""A contract is data: it survives JSON, is fingerprinted by its machine, and is compared without running anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import Contract, Event, Hop, RetryVerdict
from tenure.contracts.notation import path
from tenure.contracts.numbers import Heartbeat, Jitter
from tenure.contracts.stored_form import from_description
from tenure.contracts.versions import breaking_changes
from tenure.errors import Unsound

PHASE27, GATE_B2, RELIABILITY = BUILT_IN["phase27"], BUILT_IN["gate_b2"], BUILT_IN["reliability"]

every_contract = pytest.mark.parametrize("name", BUILT_IN)

NEVER_ORPHANED = Heartbeat(seconds=15, minimum_seconds=10, maximum_seconds=30, missed=0)


@every_contract
def test_contract_survives_json(name: str) -> None:
    contract = BUILT_IN[name]
    again = from_description(json.loads(json.dumps(contract.describe())))
    assert again == contract
    assert again.digest() == contract.digest()
    assert again.describe() == contract.describe()


@pytest.mark.req("S4-01")
def test_gate_b2_says_its_version() -> None:
    assert GATE_B2.describe()["version"] == "2026.02.21-r3"


NUMBERS: Mapping[str, tuple[Callable[[], Contract], str]] = {
    "a lease shorter than its range": (
        lambda: RELIABILITY.with_numbers({"lease_ms": 29_999}), "lease_ms is 29999, outside 30000..120000",
    ),
    "a lease longer than its range": (
        lambda: PHASE27.with_numbers({"lease_ms": 86_400_001}), "lease_ms is 86400001, outside 2000..86400000",
    ),
    "a heartbeat outside its range": (
        lambda: RELIABILITY.with_numbers({"heartbeat_ms": 9_999}), "heartbeat_ms is 9999, outside 10000..30000",
    ),
    "an orphan after no missed beat": (
        lambda: replace(RELIABILITY, lease=replace(RELIABILITY.lease, heartbeat=NEVER_ORPHANED)),
        "heartbeat: at least one missed beat must make an orphan",
    ),
    "a fourth retry where three are frozen": (
        lambda: GATE_B2.with_numbers({"max_attempts": 4}), "max_attempts is 4; only 3 is accepted",
    ),
    "no attempt at all": (lambda: PHASE27.with_numbers({"max_attempts": 0}), "max_attempts is 0, outside 1..1000"),
    "a backoff of nothing": (
        lambda: PHASE27.with_numbers({"backoff_base_ms": 0}), "backoff_base_ms is 0, outside 1..86400000",
    ),
    "no cap": (
        lambda: PHASE27.with_numbers({"backoff_cap_ms": 0}), "backoff_cap_ms is 0, outside 1..604800000",
    ),
    "a factor that shrinks": (
        lambda: replace(PHASE27, backoff=replace(PHASE27.backoff, factor=0.5)),
        "backoff factor 0.5 must be at least 1",
    ),
    "a negative jitter": (
        lambda: replace(GATE_B2, backoff=replace(GATE_B2.backoff, jitter=Jitter(form="add", low=-1, high=300))),
        "jitter -1..300 must be a range that is not negative",
    ),
    "a jitter whose ends are swapped": (
        lambda: replace(PHASE27, backoff=replace(PHASE27.backoff, jitter=Jitter(form="multiply", low=1.3, high=0.7))),
        "jitter 1.3..0.7 must be a range that is not negative",
    ),
    "a knob for an unknown number": (
        lambda: replace(PHASE27, knobs={"TASK_MOOD": "happiness"}),
        "knob TASK_MOOD sets the unknown number happiness",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", NUMBERS)
def test_contract_is_refused_with(what: str) -> None:
    broken, fault = NUMBERS[what]
    with pytest.raises(Unsound) as refusal:
        broken()
    assert refusal.value.faults == [fault]


EDGES: Mapping[str, str] = {
    "standard": "queued>running running>succeeded running>queued running>dead queued>dead "
    "queued>cancelled running>cancelled",
    "phase27": "queued>running running>running running>completed running>queued running>failed",
    "dispatcher": "Queued>Running Running>Completed Running>Failed Failed>Queued "
    "Queued>Canceled Running>Canceled Failed>Canceled",
    "reliability": "queued>assigned assigned>running running>succeeded running>failed running>queued assigned>queued "
    "queued>cancelled assigned>cancelled running>cancelled "
    "queued>dead_lettered assigned>dead_lettered running>dead_lettered",
    "simple": "PENDING>RUNNING RUNNING>SUCCESS RUNNING>FAILED FAILED>PENDING PENDING>CANCELLED RUNNING>CANCELLED",
    "gate_b2": "queued>running running>succeeded running>retrying running>dlq_pending retrying>running "
    "retrying>dlq_pending dlq_pending>dlq_recorded dlq_recorded>failed",
}


@every_contract
def test_contract_has_exactly_its_documents_edges(name: str) -> None:
    expected = [tuple(edge.split(">")) for edge in EDGES[name].split()]
    assert sorted(BUILT_IN[name].edges()) == sorted(expected)


@pytest.mark.req("S4-10")
def test_gate_b2_allows_eight_of_forty_nine_pairs() -> None:
    states = ("queued", "running", "retrying", "succeeded", "dlq_pending", "dlq_recorded", "failed")
    assert tuple(GATE_B2.states) == states
    allowed = {pair for pair in product(states, states) if pair in GATE_B2.edges()}
    assert allowed == {
        ("queued", "running"), ("running", "succeeded"), ("running", "retrying"), ("running", "dlq_pending"),
        ("retrying", "running"), ("retrying", "dlq_pending"), ("dlq_pending", "dlq_recorded"),
        ("dlq_recorded", "failed"),
    }  # fmt: skip
    assert len(set(product(states, states)) - allowed) == 41


SAME_MACHINE: Mapping[str, Callable[[Contract], Contract]] = {
    "title": lambda c: replace(c, title="another title"),
    "alerts": lambda c: replace(c, alerts={"any": 1}),
    "lease": lambda c: c.with_numbers({"lease_ms": 90_000}),
    "heartbeat": lambda c: c.with_numbers({"heartbeat_ms": 20_000}) if c.lease.heartbeat else c,
    "limit": lambda c: c.with_numbers({"max_attempts": c.budget.maximum}),
    "backoff base": lambda c: c.with_numbers({"backoff_base_ms": 777}),
    "backoff cap": lambda c: c.with_numbers({"backoff_cap_ms": 88_888}),
}


@every_contract
@pytest.mark.parametrize("what", SAME_MACHINE)
def test_digest_ignores_the(what: str, name: str) -> None:
    assert SAME_MACHINE[what](BUILT_IN[name]).digest() == BUILT_IN[name].digest()


@every_contract
def test_digest_changes_with_any_hop(name: str) -> None:
    contract = BUILT_IN[name]
    digests = {contract.digest()}
    for at, way in enumerate(contract.paths):
        for step, hop in enumerate(way.hops):
            for state, roles in contract.states.items():
                for role in roles:
                    hops = (*way.hops[:step], Hop(state, role), *way.hops[step + 1 :])
                    changed = (*contract.paths[:at], replace(way, hops=hops), *contract.paths[at + 1 :])
                    if Hop(state, role) == hop or (other := _digest_if_sound(contract, changed)) is None:
                        continue
                    assert other not in digests, f"{way.trigger} by {hop.state} or {state} {role} looks the same"
                    digests.add(other)


def _digest_if_sound(contract: Contract, changed: Any) -> str | None:
    try:
        return replace(contract, paths=changed).digest()
    except Unsound:
        return None


OTHER_MACHINE: Mapping[str, Callable[[dict[str, Any]], Any]] = {
    "a path": lambda d: d["paths"].append({**d["paths"][-2], "sources": ["queued"]}),
    "the due rule of a path": lambda d: d["paths"][2].update(due="now"),
    "the counter's start": lambda d: d["counter"].update(initial=1),
    "what is counted": lambda d: d["counter"].update(on=["retry"]),
    "the retries": lambda d: d["budget"].update(maximum=4),
    "the factor": lambda d: d["backoff"].update(factor=3.0),
    "the jitter": lambda d: d["backoff"]["jitter"].update(high=301),
    "which errors are tried again": lambda d: d["retryable"].update(rule="any"),
    "the keys of an event": lambda d: d["events"][0]["keys"].pop("trace_id"),
    "the error code": lambda d: d.update(invalid_transition="NO"),
    "the reviewers": lambda d: d["dead_letters"].update(reviewers=1),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHER_MACHINE)
def test_digest_changes_with(what: str) -> None:
    declared = GATE_B2.describe()
    OTHER_MACHINE[what](declared)
    assert from_description(declared).digest() != GATE_B2.digest()


ERRORS: Mapping[str, Mapping[str, Any]] = {
    "nothing known": {},
    "transient": {"type": "TransientError"},
    "permanent": {"type": "PermanentError"},
    "validation": {"type": "ValidationError"},
    "unknown": {"type": "KeyError"},
    "unknown, worth it": {"type": "KeyError", "retryable": True},
    "unknown, hopeless": {"type": "KeyError", "retryable": False},
    "transient, hopeless": {"type": "TransientError", "retryable": False},
    "permanent, worth it": {"type": "PermanentError", "retryable": True},
    "a flag that is no flag": {"retryable": "yes"},
}

RETRY, FATAL = RetryVerdict("retry"), RetryVerdict("fatal")
_ALWAYS = dict.fromkeys(ERRORS, RETRY)
_PERMANENT, _INVALID = RetryVerdict("fatal", "permanent_error"), RetryVerdict("fatal", "validation_failed")
VERDICTS: Mapping[str, Mapping[str, RetryVerdict]] = {
    "phase27": _ALWAYS,
    "dispatcher": _ALWAYS,
    "simple": _ALWAYS,
    "gate_b2": {**dict.fromkeys(ERRORS, FATAL), "unknown, worth it": RETRY, "permanent, worth it": RETRY},
    "reliability": {
        **_ALWAYS, "permanent": FATAL, "permanent, worth it": FATAL, "unknown, hopeless": FATAL,
        "validation": RetryVerdict("dead_letter", "validation_failed"),
    },
    "standard": {
        **_ALWAYS, "permanent": _PERMANENT, "permanent, worth it": _PERMANENT, "validation": _INVALID,
        "unknown, hopeless": FATAL, "transient, hopeless": FATAL,
    },
}  # fmt: skip


@every_contract
def test_contract_judges_errors_as_its_document_says(name: str) -> None:
    judged = {what: BUILT_IN[name].retryable.verdict(error) for what, error in ERRORS.items()}
    assert judged == VERDICTS[name]


@every_contract
def test_every_verdict_has_a_path_from_every_active_state(name: str) -> None:
    contract = BUILT_IN[name]
    active = [state for state, roles in contract.states.items() if "active" in roles]
    for error in ERRORS.values():
        trigger = contract.retryable.verdict(error).trigger
        assert all(contract.path(trigger, state) for state in active), f"{error} leads to {trigger}, which has no path"


def _changed(contract: Contract, change: Callable[[dict[str, Any]], Any]) -> Contract:
    declared = {**contract.describe(), "version": "2"}
    change(declared)
    return from_description(declared)


def _paused(contract: Contract) -> Contract:
    """Another state with ways in and out, an optional event key and another event: all of it additive."""
    states = {**contract.states, "paused": ("waiting",)}
    more = (path("hand_back", "running > paused", due="keep"), path("promote", "paused > queued", due="now"))
    events = [replace(event, keys={**event.keys, "when": "ts_text"}, optional=("when",)) for event in contract.events]
    events += [Event("resumed", ("promote",), {"ts": "ts_text"}), Event("paused", ("hand_back",), {})]
    return replace(contract, version="2", states=states, paths=(*contract.paths, *more), events=tuple(events))


@pytest.mark.req("S2-62")
def test_added_states_paths_events_and_keys_are_compatible() -> None:
    assert RELIABILITY.version == "1"
    assert list(breaking_changes(RELIABILITY, _paused(RELIABILITY))) == []
    assert list(breaking_changes(RELIABILITY, RELIABILITY)) == []


def _without_failed(declared: dict[str, Any]) -> None:
    declared["paths"] = [way for way in declared["paths"] if way["choice"] is None]
    for way in declared["paths"]:
        if way["trigger"] == "fatal":
            way.update(hops=[{"state": "dead_lettered", "role": "done"}], letter="exhausted_retries")
    del declared["states"]["failed"]
    declared["events"][5]["on"] = ["exhaust", "fatal", "expire_at_cap", "dead_letter", "compensation_failed"]
    declared["events"] = [event for event in declared["events"] if event["name"] != "job_failed"]


def _without_heartbeats(declared: dict[str, Any]) -> None:
    """Let a heartbeat show as a renewal: where events have causes, every log row shows as an event."""
    del declared["events"][7]
    declared["events"][7]["on"].append("heartbeat")


REMOVALS: Mapping[str, tuple[Callable[[dict[str, Any]], Any], list[str]]] = {
    "a state": (
        _without_failed,
        ["state failed is gone", "path exhaust from running is gone", "path fatal from running changed",
         "event job_failed on fatal is gone", "event job_failed on exhaust>failed is gone"],
    ),
    "an event": (_without_heartbeats, ["event job_heartbeat on heartbeat is gone"]),
    "an event's key": (
        lambda d: d["events"][0]["keys"].pop("reason"), ["event job_claimed on claim lost or renamed a key"],
    ),
    "the meaning of a key": (
        lambda d: d["events"][0]["keys"].update(attempt="claims"), ["event job_claimed on claim lost or renamed a key"],
    ),
    "a new key that every event must have": (
        lambda d: d["events"][0]["keys"].update(when="ts_text"),
        ["event job_claimed on claim requires the new key when; declare it optional"],
    ),
    "the presence of a key": (
        lambda d: d["events"][0].update(optional=["reason"]),
        ["event job_claimed on claim may leave out the key reason now"],
    ),
    "the name of a key": (
        lambda d: d["events"][0]["keys"].update(cause=d["events"][0]["keys"].pop("reason")),
        ["event job_claimed on claim lost or renamed a key",
         "event job_claimed on claim requires the new key cause; declare it optional"],
    ),
    "the name of the limit": (
        lambda d: d["budget"].update(name="tries"), ["the name of the limit changed from max_attempts to tries"],
    ),
    "a stage": (lambda d: d["dead_letters"]["stages"].remove("fetch"), ["dead letter stage fetch is gone"]),
    "what a request may do": (
        lambda d: d["closed_to_requests"].append("cancel"), ["no request may cancel any more"],
    ),
    "a second person for a discard": (
        lambda d: d["dead_letters"].update(reviewers=2), ["how many people a discard needs changed from 0 to 2"],
    ),
    "a source of a path": (
        lambda d: d["paths"][9]["sources"].remove("queued"), ["path cancel from queued is gone"],
    ),
    "where a path leads": (
        lambda d: d["paths"][6]["hops"][0].update(state="cancelled"), ["path fatal from running changed"],
    ),
    "when a retry is due": (lambda d: d["paths"][3].update(due="now"), ["path retry from running changed"]),
    "why a letter is written": (
        lambda d: d["paths"][8].update(letter="infrastructure_failure"),
        ["path expire_at_cap from assigned changed", "path expire_at_cap from running changed"],
    ),
    "what is counted": (
        lambda d: d["counter"].update(on=["start"]),
        ["the counter changed from Counter(name='attempts', initial=0, on=('claim',)) to "
         "Counter(name='attempts', initial=0, on=('start',))"],
    ),
}  # fmt: skip


@pytest.mark.req("S2-62")
@pytest.mark.parametrize("what", REMOVALS)
def test_incompatible_change_is_named(what: str) -> None:
    change, lost = REMOVALS[what]
    assert list(breaking_changes(RELIABILITY, _changed(RELIABILITY, change))) == lost


#: What an incompatible change must name where its whole wording is not fixed.
NAMED_REMOVALS: Mapping[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a view": (lambda d: d["views"].pop(2), "dead_letters"),
    "a column of a view": (lambda d: d["views"][0]["columns"].pop("checkpoint"), "checkpoint"),
    "the meaning of a column": (lambda d: d["views"][0]["columns"].update(attempts="claims"), "attempts"),
    "a reason of dead letters": (lambda d: d["dead_letters"]["reasons"].remove("parse_error"), "parse_error"),
    "a mode of cancelling": (lambda d: d["cancel_modes"].remove("hard"), "hard"),
    "the error code": (lambda d: d.update(invalid_transition="NO"), "INVALID_TRANSITION"),
}


@pytest.mark.parametrize("what", NAMED_REMOVALS)
def test_incompatible_change_names_what_is_gone(what: str) -> None:
    change, named = NAMED_REMOVALS[what]
    assert any(named in lost for lost in breaking_changes(RELIABILITY, _changed(RELIABILITY, change)))
