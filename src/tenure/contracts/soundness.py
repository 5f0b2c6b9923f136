"""Check that a contract is sound. Every fault is reported at once, with what is wrong and where.

The checks walk (state, role) pairs, because one state name can be a step in one path and the end of another.
"""

from __future__ import annotations

import re
from collections import Counter as Counted
from collections.abc import Callable, Iterable, Mapping
from typing import get_args

from tenure.contracts.decisions import decision_faults, did_you_mean, is_left, waiting_faults
from tenure.contracts.declaration import HELD, ROLES, TRIGGERS, Contract, Due, Hop, Path, Role
from tenure.contracts.view_fields import FIELDS
from tenure.errors import Unsound

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}\Z")
_STATE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}\Z")

#: Triggers that end an epoch. Only after these may a job have a lower rank than before.
EPOCH_ENDS = frozenset({"retry", "expire", "reclaim", "promote", "snooze", "hand_back"})
#: Triggers whose paths must end a job.
_FINAL_TRIGGERS = (
    "succeed", "exhaust", "fatal", "expire_at_cap", "cancel", "dead_letter", "settle", "compensation_failed",
)  # fmt: skip
RANK: dict[str, int] = {"ready": 0, "waiting": 0, "leased": 1, "active": 2, "settling": 3, "done": 4}


def check_soundness(contract: Contract) -> None:
    """Raise `Unsound` if the contract contradicts itself."""
    faults = [fault for find in CHECKS for fault in find(contract)]
    if faults:
        raise Unsound(contract.name, faults, contract)


def _names(contract: Contract) -> Iterable[str]:
    if not _NAME.match(contract.name):
        yield f"name {contract.name!r} must be lower case letters, digits and _, at most 40"
    version: object = contract.version
    if not isinstance(version, str) or not 0 < len(version) <= 40:
        yield f"version {version!r} must be a text of 1 to 40 characters"
    for view in contract.views:
        for name in (view.name, *view.columns):
            if not _NAME.match(name):
                yield f"view {view.name}: {name!r} must be lower case letters, digits and _, at most 40"
    for state, roles in contract.states.items():
        if not _STATE.match(state):
            yield f"state {state!r} must be letters, digits and _, at most 40"
        if not roles:
            yield f"state {state} has no role"
        for role in roles:
            if role not in ROLES:
                meant = did_you_mean(str(role), ROLES)
                yield f"state {state} has the unknown role {role!r}{meant}; roles are {', '.join(ROLES)}"


def _hops(contract: Contract) -> Iterable[str]:
    for path in contract.paths:
        where = f"path {path.trigger}"
        if path.trigger not in TRIGGERS:
            yield from decision_faults(contract, path)
        if not path.hops:
            yield f"{where}: no hop"
        if path.due not in get_args(Due):
            yield f"{where}: unknown due {path.due!r}; it is one of {', '.join(get_args(Due))}"
        for source in path.sources:
            if source not in contract.states:
                yield f"{where}: unknown source state {source}{did_you_mean(source, contract.states)}"
            elif set(contract.states[source]) == {"done"}:
                yield f"{where}: leaves {source}, which is done; a finished job never changes"
        for hop in path.hops:
            if hop.state not in contract.states:
                yield f"{where}: unknown state {hop.state}{did_you_mean(hop.state, contract.states)}"
            elif not hop.role:
                yield f"{where}: {hop.state} has several roles; say which, as {hop.state}:role"
            elif hop.role not in contract.states[hop.state]:
                yield f"{where}: {hop.state} is never {hop.role}"
        for hop in path.hops[:-1]:
            if hop.role != "settling":
                yield f"{where}: passes through {hop.state} as {hop.role}; a step inside a path is settling"
    starts = Counted((path.trigger, source, path.choice) for path in contract.paths for source in path.sources)
    yield from (f"path {trigger}: declared twice from {source}" for (trigger, source, _), n in starts.items() if n > 1)


def _reachable(contract: Contract) -> Iterable[str]:
    if contract.initial not in contract.states:
        yield f"initial state {contract.initial} is not declared{did_you_mean(contract.initial, contract.states)}"
        return
    if contract.initial_role not in contract.states[contract.initial]:
        yield f"initial state {contract.initial} is not ready, and does not wait for a decision either"
    reached: set[tuple[str, str]] = {(contract.initial, contract.initial_role)}
    for _ in contract.paths:  # each round reaches what is one path further
        live = {state for state, role in reached if role != "done"}
        reached |= {(hop.state, hop.role) for path in contract.paths if live & set(path.sources) for hop in path.hops}
    for state, roles in contract.states.items():
        for role in roles:
            if (state, role) not in reached:
                yield f"state {state} is never reached as {role}"


def _needed_paths(contract: Contract) -> Iterable[str]:
    """Every job must be able to go on, whatever happens to it in its state."""
    held: tuple[Role, ...] = ("leased", "active")
    always = True
    needed: tuple[tuple[tuple[Role, ...], str, bool, str], ...] = (
        (("ready",), "claim", always, " is ready, but no claim path takes it{write}"),
        (("leased",), "start", always, " is leased, but no start path leads on{write}"),
        (("active",), "succeed", always, " is active, but no succeed path leads on{write}"),
        (held, "expire_at_cap", always, ": a dead worker's last claim has no end (no expire_at_cap path){write}"),
        (held, "compensation_failed", contract.compensates,
            ": a compensation can be lost there, but no compensation_failed path leads on"),
        (held, "cancel", bool(contract.cancel_modes), ": can be cancelled by mode, but no cancel path leads on"),
    )  # fmt: skip
    for roles, trigger, applies, fault in needed:
        for state in _states_in(contract, *roles):
            if applies and contract.path(trigger, state) is None:
                route = f"{state} > STATE"
                yield f"state {state}{fault.format(write=f'; write path({trigger!r}, {route!r})')}"


def _claims(contract: Contract) -> Iterable[str]:
    for path in _paths_of(contract, "claim", "reclaim"):
        if len(path.hops) != 1 or path.end.role not in HELD:
            yield f"path {path.trigger}: must be one hop into a leased or active state"


def _ends(contract: Contract) -> Iterable[str]:
    for path in _paths_of(contract, *_FINAL_TRIGGERS):
        if path.end.role != "done" and not _settles(contract, path.end):
            yield f"path {path.trigger}: ends in {path.end.state}, which is not final and does not settle"
    for state in _states_in(contract, "active"):
        if contract.path("retry", state) and contract.path("exhaust", state) is None:
            yield f"state {state}: retries, but no exhaust path ends it; write path('exhaust', '{state} > STATE')"
    for state in _states_in(contract, "leased", "active"):
        if contract.path("expire", state) is None and contract.path("reclaim", state) is None:
            yield (
                f"state {state}: a dead worker's job has no way back (no expire or reclaim path); "
                f"write path('expire', '{state} > STATE')"
            )
        elif contract.path("expire", state) and contract.path("reclaim"):
            yield f"state {state}: expires, while another state is reclaimed; a contract does one or the other"


def _modes(contract: Contract) -> Iterable[str]:
    if contract.compensates and "compensating" not in contract.facts:
        yield "compensations are made, but facts does not name compensating: the log would not tell when one began"
    for mode in contract.cancel_modes:
        if mode not in ("soft", "hard"):
            yield f"cancel: unknown mode {mode!r}; modes are soft and hard"


def _ways_back(contract: Contract) -> Iterable[str]:
    for path in _paths_of(contract, "retry", "expire", "snooze", "hand_back"):
        if path.end.role == "ready":
            continue
        if path.end.role != "waiting" or not is_left(contract, path.end.state):
            yield f"path {path.trigger}: ends in {path.end.state}, from where the job can never be claimed again"
    for path in _paths_of(contract, "promote"):
        for source in path.sources:
            if "waiting" not in contract.states.get(source, ("waiting",)):
                yield f"path promote: leaves {source}, where nobody waits for a time"
        if path.end.role != "ready":
            yield f"path promote: ends in {path.end.state}, which is not ready"
    for path in contract.paths:
        if path.trigger in EPOCH_ENDS or path.trigger in contract.decisions or not path.hops:
            continue
        for source in path.sources:
            live = [role for role in contract.states.get(source, ()) if role in RANK and role != "done"]
            if live and path.end.role in RANK and RANK[path.end.role] <= min(RANK[role] for role in live):
                yield f"path {path.trigger}: falls from {source} back to {path.end.state} inside an epoch"


def _counts(contract: Contract) -> Iterable[str]:
    on: object = contract.counter.on
    if isinstance(on, str):
        yield f"counter {contract.counter.name}: counts on a tuple of triggers, so write ({on!r},)"
        return
    for trigger in contract.counter.on:
        if trigger not in contract.triggers():
            yield f"counter {contract.counter.name}: counts on {trigger}, but no path has that trigger"


def _letters(contract: Contract) -> Iterable[str]:
    letters = contract.dead_letters
    if letters.mode not in ("none", "record", "staged"):
        yield f"dead letters: unknown mode {letters.mode!r}; modes are none, record and staged"
        return
    written = {path.letter for path in contract.paths if path.letter}
    if letters.mode == "none":
        for path in contract.paths:
            if path.letter:
                yield f"path {path.trigger}: writes a dead letter, but the contract keeps none"
        return
    for path in contract.paths:
        if path.letter and path.hops and path.end.role != "done" and letters.mode == "record":
            yield f"path {path.trigger}: writes a dead letter of a job that goes on in {path.end.state}"
    for reason in sorted(reason for reason in written if letters.reasons and reason not in letters.reasons):
        yield f"dead letter reason {reason!r} is not one of the declared reasons"
    kept = {path.end.state for path in contract.paths if path.letter and path.hops}
    for path in contract.paths:
        if path.hops and path.end.role == "done" and path.end.state in kept and not path.letter:
            yield f"path {path.trigger}: reaches {path.end.state} around the dead-letter record"
    if letters.mode == "staged":
        for path in contract.paths:
            if path.letter and path.trigger != "settle":
                yield f"path {path.trigger}: a staged dead letter is written by settle alone"
            if path.trigger == "settle" and not path.letter:
                yield "path settle: ends a job without the dead letter that a staged contract promises"


def _projections(contract: Contract) -> Iterable[str]:
    known = contract.triggers() | set(contract.facts)
    for event in contract.events:
        for on in event.on:
            trigger, _, state = on.partition(">")
            ends = {path.end.state for path in contract.paths if path.trigger == trigger and path.choice}
            if trigger not in known or (state and state not in ends):
                yield f"event {event.name}: is emitted on {on}, which this contract does not have"
        yield from _unknown_fields(f"event {event.name}: key ", event.keys, "events")
        for key in event.optional:
            if key not in event.keys:
                yield f"event {event.name}: {key} is optional, but is none of its keys"
    for name, count in Counted(view.name for view in contract.views).items():
        if count > 1:
            yield f"view {name}: declared {count} times"
    for view in contract.views:
        if view.rows not in FIELDS:
            yield f"view {view.name}: unknown rows {view.rows!r}; rows are {', '.join(FIELDS)}"
            continue
        yield from _unknown_fields(f"view {view.name}: column ", view.columns, view.rows)
        for column, keys in view.objects.items():
            if column not in view.columns:
                yield f"view {view.name}: object {column} is not one of its columns"
            yield from _unknown_fields(f"view {view.name}: key {column}.", keys, view.rows)


def _unknown_fields(where: str, shown: Mapping[str, str], rows: str) -> Iterable[str]:
    for name, field in shown.items():
        if field not in FIELDS[rows]:
            yield f"{where}{name} names the unknown field {field}"


def _causes(contract: Contract) -> Iterable[str]:
    """The cause of an event is the log row before it, so that row must be shown as an event too."""
    if "cause" not in contract.shown_by_events():
        return
    if not contract.indexed_log:
        yield "events show their cause, which only an indexed log keeps; declare indexed_log"
    shown = {on.partition(">")[0] for event in contract.events for on in event.on}
    # The engine logs `compensating` itself and skips it as a cause.
    for on in sorted((contract.triggers() | set(contract.facts)) - shown - {"compensating"}):
        yield f"events show their cause, but {on} shows as no event"


def _numbers(contract: Contract) -> Iterable[str]:
    lease, budget, backoff = contract.lease, contract.budget, contract.backoff
    yield from _within("lease_ms", lease.default_ms, lease.minimum_ms, lease.maximum_ms)
    if lease.heartbeat:
        heartbeat = lease.heartbeat
        yield from _within("heartbeat_ms", heartbeat.default_ms, heartbeat.minimum_ms, heartbeat.maximum_ms)
        if heartbeat.missed < 1:
            yield "heartbeat: at least one missed beat must make an orphan"
    yield from _within("max_attempts", budget.default, budget.minimum, budget.maximum)
    yield from _within("backoff_base_ms", backoff.base_ms, 1, 86_400_000)
    yield from _within("backoff_cap_ms", backoff.cap_ms, 1, 604_800_000)
    if backoff.jitter.form not in ("multiply", "add"):
        yield f"jitter: unknown form {backoff.jitter.form!r}; forms are multiply and add"
    if backoff.factor < 1:
        yield f"backoff factor {backoff.factor} must be at least 1"
    if not 0 <= backoff.jitter.low <= backoff.jitter.high:
        yield f"jitter {backoff.jitter.low}..{backoff.jitter.high} must be a range that is not negative"
    for name, number in contract.knobs.items():
        if number not in contract.numbers():
            yield f"knob {name} sets the unknown number {number}"


def _verdicts(contract: Contract) -> Iterable[str]:
    """Every error must lead to an existing path; otherwise a holder could not report the failure."""
    rules = {"any": ["retry"], "flag": ["retry", "fatal"], "class": ["retry", "fatal"]}
    if contract.retryable.rule not in rules:
        yield f"retryable: unknown rule {contract.retryable.rule!r}; rules are {', '.join(rules)}"
        return
    possible = rules[contract.retryable.rule]
    classes = contract.retryable.classes
    # Trigger → the first class that leads to it.
    named = {verdict.trigger: f"class {name}" for name, verdict in reversed([*classes.items()])}
    for name, verdict in classes.items():
        if verdict.trigger not in ("retry", "fatal", "dead_letter"):
            yield f"retryable: class {name} leads to {verdict.trigger}, which is no answer to an error"
    for trigger in dict.fromkeys([*possible, *named]):
        for state in _states_in(contract, "active"):
            if contract.path(trigger, state) is None:
                what = named.get(trigger, "an error")
                write = f"write path({trigger!r}, '{state} > STATE')"
                yield f"retryable: {what} leads to {trigger}, but {state} has no such path; {write}"
    reasons = contract.dead_letters.reasons
    for name, verdict in classes.items():
        if verdict.reason and reasons and verdict.reason not in reasons:
            yield f"retryable: class {name} gives the undeclared dead letter reason {verdict.reason!r}"


def _within(name: str, value: object, low: int, high: int) -> Iterable[str]:
    if isinstance(value, bool) or not isinstance(value, int):
        yield f"{name} must be a whole number, not {value!r}"
    elif low == high != value:
        yield f"{name} is {value}; only {low} is accepted"
    elif not low <= value <= high:
        yield f"{name} is {value}, outside {low}..{high}"


def _states_in(contract: Contract, *wanted: Role) -> list[str]:
    return [state for role in wanted for state, roles in contract.states.items() if role in roles]


def _paths_of(contract: Contract, *triggers: str) -> list[Path]:
    return [path for path in contract.paths if path.trigger in triggers and path.hops]


def _settles(contract: Contract, hop: Hop) -> bool:
    path = contract.path("settle", hop.state)
    return hop.role == "settling" and path is not None and path.end.role == "done"


CHECKS: tuple[Callable[[Contract], Iterable[str]], ...] = (
    _names, _hops, _reachable, _modes, _needed_paths, waiting_faults, _claims, _ends, _ways_back, _counts, _letters,
    _verdicts, _projections, _causes, _numbers,
)  # fmt: skip
