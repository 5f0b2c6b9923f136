"""What a new version of a contract takes away from the version before."""

from __future__ import annotations

from collections.abc import Iterable

from tenure.contracts.declaration import Contract


def breaking_changes(old: Contract, new: Contract) -> Iterable[str]:
    """Yield what an upgrade from old to new removes or changes; yields nothing for an additive change."""
    for name, roles in old.states.items():
        if name not in new.states:
            yield f"state {name} is gone"
        elif not set(roles) <= set(new.states[name]):
            yield f"state {name} no longer has the roles {sorted(set(roles) - set(new.states[name]))}"
    for subject, before, after in (
        ("the initial state", old.initial, new.initial),
        ("the role of the initial state", old.initial_role, new.initial_role),
        ("the counter", old.counter, new.counter),
        ("the code of an invalid transition", old.invalid_transition, new.invalid_transition),
        ("executions beyond the limit", old.budget.extra, new.budget.extra),
        ("what an expired lease may still do", old.lease.after_expiry, new.lease.after_expiry),
        ("whether missed heartbeats orphan a job", old.lease.heartbeat is None, new.lease.heartbeat is None),
        ("how dead letters are written", old.dead_letters.mode, new.dead_letters.mode),
        ("the name of the limit", old.budget.name, new.budget.name),
        ("how many people a discard needs", old.dead_letters.reviewers, new.dead_letters.reviewers),
    ):
        if before != after:
            yield f"{subject} changed from {before} to {after}"
    if new.path("reclaim") and not old.path("reclaim"):
        yield "expired jobs are reclaimed in place now"
    for kind, had, has in (
        ("cancel mode", old.cancel_modes, new.cancel_modes),
        ("dead letter reason", old.dead_letters.reasons, new.dead_letters.reasons),
        ("dead letter stage", old.dead_letters.stages, new.dead_letters.stages),
        ("fact", old.facts, new.facts),
    ):
        yield from (f"{kind} {name} is gone" for name in had if name not in has)
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
            # Older events have no such key, so readers must not require it.
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
