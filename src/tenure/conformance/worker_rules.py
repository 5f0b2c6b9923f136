"""What a worker must never send, whatever happens to it: rules over all exchanges of a scenario."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

from tenure.conformance.exchange import FINAL_VERBS, Exchange, Hold, Report

#: The types that a worker in the kit has handlers for.
TYPES: Final = ("echo", "sleep", "fail")
#: Further heartbeats that may be under way when the worker learns that it lost the lease.
_HEARTBEATS_UNDER_WAY: Final = 2
_WRONG_CALLS: Final = frozenset({400, 401, 403, 405, 413, 415, 422, 431})
#: Faults of one rule that are named; one more says how many there are.
_SHOWN: Final = 3


def faults_in(exchanges: Sequence[Exchange]) -> list[str]:
    """Every fault, in words; the worst rules first."""
    by_hold: dict[Hold, list[Report]] = defaultdict(list)
    for exchange in exchanges:
        for report in exchange.reports():
            by_hold[report.hold].append(report)
    faults: list[str] = []
    for rule in (_unclaimed, _after_lost_lease, _two_ends):
        found = [fault for hold, reports in by_hold.items() for fault in rule(hold, reports, exchanges)]
        faults += _shortened(found)
    for check in (_claims, _wrong_calls):
        faults += _shortened(list(dict.fromkeys(check(exchanges))))
    return faults


def _unclaimed(hold: Hold, reports: Sequence[Report], exchanges: Sequence[Exchange]) -> Iterator[str]:
    won = {one for exchange in exchanges if (claim := exchange.claim()) for one in claim.won}
    if hold not in won:
        verbs = ", ".join(dict.fromkeys(report.verb for report in reports))
        yield (
            f"worked without a claim: it sent {verbs} for job {hold.job_id} with a lease token that no claim had "
            "given it for this job"
        )


def _after_lost_lease(hold: Hold, reports: Sequence[Report], exchanges: Sequence[Exchange]) -> Iterator[str]:
    told = next((report for report in reports if report.is_lost_lease), None)
    if told is None or any(report.verb in FINAL_VERBS and report.is_accepted for report in reports):
        return  # a heartbeat that was under way at the job's end is refused too
    later = [report for report in reports if report.asked_after(told)]
    # A completion whose answer was lost may be the reason of the refusal: then it is rightly sent again.
    sent = [] if told.verb in FINAL_VERBS else [(one.verb, one.facts) for one in reports if one not in later]
    refusal = f"its {told.verb} had been refused with {told.code or told.status}"
    for report in later:
        if report.verb in FINAL_VERBS and (report.verb, report.facts) not in sent:
            call = f"it sent {report.verb} for job {hold.job_id}"
            yield f"completed a job after it lost the lease: {call} after {refusal}"
            return
    beats = sum(report.verb == "heartbeat" for report in later)
    if beats > _HEARTBEATS_UNDER_WAY:
        yield f"ignored a lost lease: it sent {beats} more heartbeats for job {hold.job_id} after {refusal}"


def _two_ends(hold: Hold, reports: Sequence[Report], exchanges: Sequence[Exchange]) -> Iterator[str]:
    # An end that was refused as too large or malformed is no end: the worker may fail the job instead.
    ends = [report for report in reports if report.verb in FINAL_VERBS and report.status not in _WRONG_CALLS]
    for first, second in pairwise(ends):
        if first.is_lost_lease:
            continue  # the other rule
        what = f"{_end(first)} and then {_end(second)}"
        if (first.verb, first.facts) != (second.verb, second.facts):
            yield f"completed a job twice with different results: it sent for job {hold.job_id} {what}"
        elif first.key != second.key:
            yield (
                f"repeated a completion under another idempotency key: job {hold.job_id}, {first.verb}, "
                f"{first.key!r} and then {second.key!r}"
            )
        elif first.is_accepted and second.asked_after(first):
            yield f"completed a job twice: it sent {second.verb} for job {hold.job_id} again after it was accepted"


def _end(report: Report) -> str:
    facts = json.dumps(report.facts)
    return f"{report.verb} {facts if len(facts) < 100 else f'{facts[:100]}…'}"


def _claims(exchanges: Sequence[Exchange]) -> Iterator[str]:
    for exchange in exchanges:
        if (claim := exchange.claim()) is None:
            continue
        if not _is_uuid4(claim.key):
            yield (
                f"claimed without a claim_key that is a UUID of version 4 (it sent {claim.key!r}): after a lost answer "
                "it cannot get the jobs that the claim won"
            )
        if not isinstance(claim.types, list):
            yield "claimed without naming its types: it takes jobs that only other workers can run"
        elif foreign := [name for name in claim.types if name not in TYPES]:
            yield f"claimed types that it has no handler for: {', '.join(map(str, foreign))}"


def _wrong_calls(exchanges: Sequence[Exchange]) -> Iterator[str]:
    for exchange in exchanges:
        is_missing = exchange.status == 404 and not any(exchange.reports())
        if exchange.answered_at is not None and (exchange.status in _WRONG_CALLS or is_missing):
            error = exchange.answer.get("error", {}) if isinstance(exchange.answer, dict) else {}
            text = f"{error.get('code')}: {error.get('message')}"
            yield f"sent a wrong call: {exchange.method} {exchange.path} was answered {exchange.status} {text}"


def _is_uuid4(value: Any) -> bool:
    try:
        return isinstance(value, str) and uuid.UUID(value).version == 4
    except ValueError:
        return False


def _shortened(faults: Sequence[str]) -> Iterable[str]:
    more = len(faults) - _SHOWN
    return [*faults[:_SHOWN], f"… and {more} more faults of this kind"] if more > 0 else faults
