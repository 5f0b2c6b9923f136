"""A contract as the statements need it: its paths, budget and backoff as parameter values, computed once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tenure.contracts.declaration import Contract, Path
from tenure.jobs.job import Job
from tenure.postgres.statement import Row, array

#: The triggers that a verb may pull; the statement chooses one of them by the locked row.
TRIGGERS_BY_VERB: Mapping[str, tuple[str, ...]] = {
    "claim": ("claim", "reclaim"),
    "start": ("start",),
    "succeed": ("succeed",),
    "fail": ("retry", "exhaust", "fatal", "dead_letter", "cancel", "expire_at_cap"),
    "compensated": ("exhaust", "fatal", "dead_letter", "cancel", "expire_at_cap"),
    "compensation_failed": ("compensation_failed",),
    "expire": ("expire", "expire_at_cap", "cancel", "compensation_failed"),
    "promote": ("promote",),
    "settle": ("settle",),
    "snooze": ("snooze", "cancel"),
    "hand_back": ("hand_back", "expire", "expire_at_cap", "cancel", "compensation_failed"),
    "cancel": ("cancel",),
    "dead_letter": ("dead_letter",),
}

#: The notes that may be written on a job without moving it, and the fact that a contract may declare for each.
NOTES: Mapping[str, str | None] = {
    "heartbeat": "heartbeat",
    "progress": None,
    "checkpoint": None,
    "request_cancel": "cancel_requested",
    "let_go": None,
    "compensated": "compensated",
}


def move_statement(verb: str, *, fenced: bool) -> str:
    """The statement of a verb: a holder's move, the end of an expired lease, a claim by id, or an operator's move."""
    if fenced:
        return "finish"
    return {"expire": "expire", "claim": "claim_by_id"}.get(verb, "operate")


def contract_successes(contract: Contract) -> list[str]:
    """The states in which a job of this contract ends well."""
    reached = {path.end.state for path in contract.paths if path.trigger == "succeed"}
    reached |= {path.end.state for path in contract.paths if path.trigger == "settle" and reached & {*path.sources}}
    return sorted({path.end.state for path in contract.paths if path.end.role == "done"} & reached)


class BoundContract:
    """One version of a contract as the parameter values of the statements."""

    def __init__(self, contract: Contract, installation: str = "") -> None:
        self.contract = contract
        self._installation = installation
        lease, backoff = contract.lease, contract.backoff
        self.reclaims = contract.path("reclaim") is not None
        #: The verbs that may make a job ready for which a wake-up is written.
        self.waking = frozenset(
            verb
            for verb, triggers in [*TRIGGERS_BY_VERB.items(), ("transition", contract.requestable)]
            for path in contract.paths
            if contract.wakeup == "pointer" and path.trigger in triggers and path.end.role == "ready"
        )
        shown = contract.shown_by_events()
        beat = lease.heartbeat
        common: dict[str, Any] = {
            "contract": contract.name,
            "version": contract.version,
            "extra": contract.budget.extra,
            "heartbeat_ms": beat.default_ms if beat else None,
            "missed": beat.missed if beat else None,
            "forfeits": lease.after_expiry == "forfeited",
            "reclaims": self.reclaims,
            "base_ms": backoff.base_ms,
            "factor": backoff.factor,
            "cap_ms": backoff.cap_ms,
            "jitter_form": backoff.jitter.form,
            "jitter_low": backoff.jitter.low,
            "jitter_high": backoff.jitter.high,
            "cap_after_jitter": backoff.cap_after_jitter,
            "hands_back": contract.path("hand_back") is not None,
            "default_lease_ms": lease.default_ms,
            "stages": array(contract.dead_letters.stages) if contract.dead_letters.stages else None,
            "soft": False,
            #: The states that upkeep makes ready when their time has come.
            "promoted": array(
                source for path in contract.paths if path.trigger == "promote" for source in path.sources
            ),
            #: The states in which a job has succeeded, also by way of a commit point: children of its node may start.
            "success_states": array(contract_successes(contract)),
            "logs_trace": "trace" in shown,
            "logs_correlation": "correlation" in shown,
        }
        self.claim = {**common, **self._paths(("claim", "reclaim"))}
        self.moves = {
            verb: {**common, "verb": verb, **self._paths(triggers)} for verb, triggers in TRIGGERS_BY_VERB.items()
        }
        self.moves["transition"] = {
            **common, "verb": "transition", "decisions": array(contract.decisions), **self._paths(contract.requestable)
        }  # fmt: skip
        renewal = {"renewal": self._declared("renewed"), "renewal_type": self._fact_type("renewed")}
        timing = {"lease_ms": lease.default_ms, "renew_at": lease.renew_at}
        self.notes = {
            verb: {
                **common, **renewal, **timing, "verb": verb, "fenced": verb != "request_cancel",
                "fact": fact and self._declared(fact), "fact_type": fact and self._fact_type(fact),
            }
            for verb, fact in NOTES.items()
        }  # fmt: skip
        self.lost = json.dumps(dict(lease.error), ensure_ascii=False)
        #: The parameters of succeed.sql if success is one plain hop to the end: then it need not go through the gate.
        self.success = self._plain_end("succeed")
        #: The parameters of claim_plain.sql if a claim has one path; claim.sql has a list of paths instead.
        self.plain_claim = self._plain_claim()
        #: Whether its last successes were of jobs of flows: then these are tried first.
        self.flows_first = False

    def to_job(self, row: Row) -> Job:
        """Convert a row of this contract to a job."""
        return Job._make((*row, self._installation))

    def _plain_end(self, trigger: str) -> dict[str, Any] | None:
        paths = [path for path in self.contract.paths if path.trigger == trigger]
        if len(paths) != 1 or self.contract.indexed_log or trigger in self.contract.counter.on:
            return None
        (path,) = paths
        if len(path.hops) != 1 or path.end.role != "done" or path.letter or path.choice is not None:
            return None
        return {**self.moves[trigger], "end_state": path.end.state}

    def _plain_claim(self) -> dict[str, Any] | None:
        paths = [path for path in self.contract.paths if path.trigger in ("claim", "reclaim")]
        shown = self.contract.shown_by_events()
        if len(paths) != 1 or self.contract.indexed_log or not shown.isdisjoint(("trace", "correlation")):
            return None
        (path,) = paths
        if len(path.sources) != 1 or path.choice is not None:
            return None
        return {
            "trigger": path.trigger, "source": path.sources[0], "state": path.end.state, "role": path.end.role,
            "bump": int(path.trigger in self.contract.counter.on),
        }  # fmt: skip

    def _paths(self, triggers: tuple[str, ...]) -> dict[str, str]:
        rows = [
            (path, source, choice)
            for trigger in triggers
            for path in self.contract.paths
            if path.trigger == trigger
            for source in path.sources
            for choice in self._choices(path, source)
        ]
        return {
            "path_trigger": array(path.trigger for path, _, _ in rows),
            "path_source": array(source for _, source, _ in rows),
            "path_choice": array(choice for _, _, choice in rows),
            "path_hops": array(">".join(hop.state for hop in path.hops) for path, _, _ in rows),
            "path_state": array(path.end.state for path, _, _ in rows),
            "path_role": array(path.end.role for path, _, _ in rows),
            "path_due": array(path.due for path, _, _ in rows),
            "path_letter": array(self._letter(path) for path, _, _ in rows),
            "path_bump": array(int(path.trigger in self.contract.counter.on) for path, _, _ in rows),
            "path_type": array(self._type(path) for path, _, _ in rows),
        }

    def _choices(self, path: Path, source: str) -> tuple[str | None, ...]:
        """The values of on_exhausted that lead down this path: None if there is no choice, "" for no value."""
        if path.choice is not None:
            return (path.choice,)
        others = [other for other in self.contract.paths if other.trigger == path.trigger and other.choice]
        return ("", path.end.state) if any(source in other.sources for other in others) else (None,)

    def _declared(self, fact: str) -> str | None:
        return fact if fact in self.contract.facts else None

    def _fact_type(self, fact: str) -> str | None:
        if not self.contract.indexed_log:
            return None
        return next((event.name for event in self.contract.events if fact in event.on), None)

    def _letter(self, path: Path) -> str | None:
        # A staged dead letter is written by a statement of its own, before the move.
        return path.letter if self.contract.dead_letters.mode == "record" else None

    def _type(self, path: Path) -> str | None:
        if not self.contract.indexed_log:
            return None
        on = path.trigger if path.choice is None else f"{path.trigger}>{path.choice}"
        return next((event.name for event in self.contract.events if on in event.on), path.trigger)
