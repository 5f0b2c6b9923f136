"""The same contract in another form or another version: read back from its description, compared with its successor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tenure.contract import (
    Backoff,
    Budget,
    Contract,
    Counter,
    DeadLetters,
    Event,
    Heartbeat,
    Hop,
    Jitter,
    Lease,
    Path,
    Retryable,
    Verdict,
    View,
)


def from_description(declared: Mapping[str, Any]) -> Contract:
    """Rebuild a contract from its description, as the registry does."""
    value = dict(declared)
    lease = dict(value["lease"])
    lease["heartbeat"] = Heartbeat(**lease["heartbeat"]) if lease["heartbeat"] else None
    retryable = dict(value["retryable"])
    retryable["classes"] = {name: Verdict(**verdict) for name, verdict in retryable["classes"].items()}
    return Contract(
        **{
            **value,
            "states": {name: tuple(roles) for name, roles in value["states"].items()},
            "paths": tuple(_path_from(path) for path in value["paths"]),
            "counter": Counter(**_tuples(value["counter"], "on")),
            "budget": Budget(**value["budget"]),
            "backoff": Backoff(**{**value["backoff"], "jitter": Jitter(**value["backoff"]["jitter"])}),
            "lease": Lease(**lease),
            "retryable": Retryable(**retryable),
            "views": tuple(View(**view) for view in value["views"]),
            "events": tuple(Event(**_tuples(event, "on", "optional")) for event in value["events"]),
            "facts": tuple(value["facts"]),
            "dead_letters": DeadLetters(**_tuples(value["dead_letters"], "reasons", "stages")),
            "cancel_modes": tuple(value["cancel_modes"]),
            "closed_to_requests": tuple(value.get("closed_to_requests", ())),
        }
    )


def _path_from(declared: Mapping[str, Any]) -> Path:
    hops = tuple(Hop(**hop) for hop in declared["hops"])
    return Path(**{**declared, "sources": tuple(declared["sources"]), "hops": hops})


def _tuples(declared: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: tuple(part) if name in names else part for name, part in declared.items()}


def differences(old: Contract, new: Contract) -> Iterable[str]:
    """What an upgrade from old to new takes away or changes; nothing means that the change is additive."""
    for name, roles in old.states.items():
        if name not in new.states:
            yield f"state {name} is gone"
        elif not set(roles) <= set(new.states[name]):
            yield f"state {name} no longer has the roles {sorted(set(roles) - set(new.states[name]))}"
    if old.initial != new.initial:
        yield f"the initial state changed from {old.initial} to {new.initial}"
    if old.counter != new.counter:
        yield f"the counter changed from {old.counter} to {new.counter}"
    if old.invalid_transition != new.invalid_transition:
        yield f"the code of an invalid transition changed from {old.invalid_transition} to {new.invalid_transition}"
    for what, before, after in (
        ("executions beyond the limit", old.budget.extra, new.budget.extra),
        ("what an expired lease may still do", old.lease.after_expiry, new.lease.after_expiry),
        ("whether missed beats orphan", old.lease.heartbeat is None, new.lease.heartbeat is None),
        ("how dead letters are written", old.dead_letters.mode, new.dead_letters.mode),
        ("the name of the limit", old.budget.name, new.budget.name),
        ("how many people a discard needs", old.dead_letters.reviewers, new.dead_letters.reviewers),
    ):
        if before != after:
            yield f"{what} changed from {before} to {after}"
    if new.path("reclaim") and not old.path("reclaim"):
        yield "expired jobs are reclaimed in place now"
    for what, had, has in (
        ("cancel mode", old.cancel_modes, new.cancel_modes),
        ("dead letter reason", old.dead_letters.reasons, new.dead_letters.reasons),
        ("dead letter stage", old.dead_letters.stages, new.dead_letters.stages),
        ("fact", old.facts, new.facts),
    ):
        yield from (f"{what} {each} is gone" for each in had if each not in has)
    for trigger in new.closed_to_requests:
        if trigger not in old.closed_to_requests and old.path(trigger) is not None:
            yield f"no request may {trigger} any more"
    yield from _lost_views(old, new)
    for path in old.paths:
        for source in path.sources:
            now = new.path(path.trigger, source, path.choice)
            if now is None:
                yield f"path {path.trigger} from {source} is gone"
            elif (now.hops, now.due, now.letter) != (path.hops, path.due, path.letter):
                yield f"path {path.trigger} from {source} changed"
    yield from _lost_events(old, new)


def _lost_events(old: Contract, new: Contract) -> Iterable[str]:
    new_events = {(event.name, on): event for event in new.events for on in event.on}
    for event in old.events:
        for on in event.on:
            successor = new_events.get((event.name, on))
            if successor is None:
                yield f"event {event.name} on {on} is gone"
                continue
            if not dict(event.keys).items() <= dict(successor.keys).items():
                yield f"event {event.name} on {on} lost or renamed a key"
            # Events that were written before have no such key, so nobody may rely on it.
            for key in successor.keys:
                if key not in successor.optional and (key not in event.keys or key in event.optional):
                    yield f"event {event.name} on {on} requires the new key {key}; declare it optional"
            for key in event.keys:
                if key in successor.optional and key not in event.optional:
                    yield f"event {event.name} on {on} may leave out the key {key} now"


def _lost_views(old: Contract, new: Contract) -> Iterable[str]:
    views = {view.name: view for view in new.views}
    for view in old.views:
        if view.name not in views:
            yield f"view {view.name} is gone"
            continue
        successor = views[view.name]
        if successor.rows != view.rows:
            yield f"view {view.name} shows {successor.rows} instead of {view.rows}"
        for column, field in view.columns.items():
            if successor.columns.get(column) != field:
                yield f"view {view.name}: column {column} is gone or shows something else"
        for column, keys in view.objects.items():
            if not keys.items() <= successor.objects.get(column, {}).items():
                yield f"view {view.name}: column {column} lost or renamed a key"
