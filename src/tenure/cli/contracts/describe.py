"""A contract as text: its states, paths, rules, events, views and settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from tenure.cli.output import columns
from tenure.contracts.declaration import Contract, View
from tenure.contracts.declaration import Path as DeclaredPath
from tenure.contracts.numbers import Jitter
from tenure.jobs.formats import format_duration
from tenure.model.backoff import delay_ms


def describe(contract: Contract) -> Iterator[str]:
    """The whole declaration as sections of aligned rows."""
    yield f"{contract.name} {contract.version}: {contract.title}"
    sections: dict[str, list[tuple[str, ...]]] = {
        "States": [
            (name, " or ".join(roles), "initial" * (name == contract.initial))
            for name, roles in contract.states.items()
        ],
        "Paths": [_path_row(contract, path) for path in contract.paths],
        "Rules": [*_rules(contract), *_failure_rules(contract)],
        "Events": [
            (event.name, f"on {', '.join(event.on)}: {', '.join(event.keys) or 'no keys'}") for event in contract.events
        ],
        "Views": [(f"tenure_{contract.name}.{view.name}", _view(view)) for view in contract.views],
        "Settings": [(knob, f"sets {number}") for knob, number in contract.knobs.items()],
    }
    for title, rows in sections.items():
        if rows:
            yield f"\n{title}"
            yield from columns(rows)


def _view(view: View) -> str:
    objects = {column: f"{column} ({', '.join(keys)})" for column, keys in view.objects.items()}
    return f"of {view.rows}: {', '.join(objects.get(column, column) for column in view.columns)}"


def _path_row(contract: Contract, path: DeclaredPath) -> tuple[str, str, str]:
    hops = [hop.state + f":{hop.role}" * (len(contract.states[hop.state]) > 1) for hop in path.hops]
    due = {"now": "due at once", "backoff": "due after the backoff", "given": "due when the caller says"}.get(path.due)
    letter = f"dead letter {path.letter}" if path.letter else None
    trigger = f"{path.trigger} [{path.choice}]" if path.choice else path.trigger
    return trigger, " → ".join([" | ".join(path.sources), *hops]), ", ".join(filter(None, (due, letter)))


def _rules(contract: Contract) -> Iterator[tuple[str, str]]:
    counter, budget, backoff, lease = contract.counter, contract.budget, contract.backoff, contract.lease
    yield "counter", f"{counter.name}, begins at {counter.initial}, rises on {', '.join(counter.on)}"
    executions, limits = budget.executions(budget.default), f"{budget.minimum} to {budget.maximum}"
    yield "budget", f"{budget.name} {budget.default} ({limits}): at most {executions} executions"
    exact = replace(backoff, jitter=Jitter(form="multiply", low=1, high=1))
    delays = ", ".join(format_duration(delay_ms(exact, 0, claims)) for claims in range(1, min(max(executions, 2), 7)))
    low, high = backoff.jitter.low, backoff.jitter.high
    spread = f"times {low:g} to {high:g}" if backoff.jitter.form == "multiply" else f"plus {low:g} to {high:g} ms"
    capped = ", the cap again after that" * backoff.cap_after_jitter
    yield "backoff", f"{delays}; factor {backoff.factor:g}, cap {format_duration(backoff.cap_ms)}, {spread}{capped}"
    limits = f"{format_duration(lease.minimum_ms)} to {format_duration(lease.maximum_ms)}"
    yield "lease", f"{format_duration(lease.default_ms)} ({limits})"
    if beat := lease.heartbeat:
        limits = f"{format_duration(beat.minimum_ms)} to {format_duration(beat.maximum_ms)}"
        yield (
            "",
            f"a beat every {format_duration(beat.default_ms)} ({limits}); {beat.missed} missed beats make an orphan",
        )
    kept = "a holder may write until the lease is taken" if lease.after_expiry == "valid_until_taken" else "forfeited"
    yield "", f"once expired: {kept}" + "; closed by the next claim" * lease.closed_by_claim
    yield "", f"recorded as {json.dumps(lease.error)}"


def _failure_rules(contract: Contract) -> Iterator[tuple[str, str]]:
    rule = {"any": "every error", "flag": "only an error that says retryable", "class": "by the error's class"}
    yield "retryable", rule[contract.retryable.rule]
    for name, verdict in contract.retryable.classes.items():
        yield "", f"{name} → {verdict.trigger}" + f" ({verdict.reason})" * (verdict.reason is not None)
    if contract.retryable.rule == "class":
        yield "", "any other → retry, unless it says it is not retryable"
    letters = contract.dead_letters
    mode = {"none": "none", "record": "written with the last hop", "staged": "written in a transaction of their own"}
    yield "dead letters", mode[letters.mode]
    for name, values in (("reasons", letters.reasons), ("stages", letters.stages)):
        if values:
            yield "", f"{name}: {', '.join(values)}"
    if letters.reviewers:
        yield "", f"a discard needs {letters.reviewers} people"
    yield "cancel", ", ".join(contract.cancel_modes) or "nobody can ask for it"
    if contract.closed_to_requests:
        yield "", f"no request may {', '.join(contract.closed_to_requests)}"
    yield "wake-up", contract.wakeup
    yield "facts", ", ".join(contract.facts) or "none"
    yield "execution key", f"job id:{'claims' if contract.execution_key == 'claims' else contract.counter.name}"
    yield "invalid hop", f"refused with {contract.invalid_transition}"
