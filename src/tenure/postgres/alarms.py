"""Alarms: look for conditions, keep one row for each time that one held, and hand notices to sinks once.

    evaluate ─▶ begin a round (one process) ─▶ read the conditions, each kind alone ─▶ store: begin, fire ─▶ clear
    take ─▶ a sink sends ─▶ mark sent, or failed: taken again later

A kind whose conditions could not be read keeps its alarms as they are. No read of conditions reads jobs one by one:
counts come from the roll-ups of moves, waiting jobs from the ready index.
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import accumulate
from typing import Final, NamedTuple

import psycopg

from tenure.contracts.declaration import Contract
from tenure.errors import UNREACHABLE, BadInput, TenureError
from tenure.jobs import validation
from tenure.jobs.alarm import ALARMS, Alarm, AlarmLimits, Condition, Notice
from tenure.jobs.finding import Finding
from tenure.jobs.formats import format_duration
from tenure.jobs.search import Search
from tenure.postgres.connect import first_line
from tenure.postgres.doctor import schema, server, work
from tenure.postgres.doctor.examination import Exam, Part
from tenure.postgres.doctor.limits import Limits
from tenure.postgres.engine import EngineUser
from tenure.postgres.registry import Registry
from tenure.postgres.statement import Atomic, Plan, statement

_log = logging.getLogger("tenure.alarms")
#: A round begins at the earliest this many seconds after the last one, in whatever process.
_PAUSE_S = 4.0
_LANES = 10_000
#: Open dead letters are counted up to this number.
_OPEN = 1_000
_DAY_S = 86_400.0
_MAX_MUTE_S = 366 * _DAY_S
#: The part of doctor that finds a kind, and the fields of its findings that tell one alarm from another.
_FOUND_BY_DOCTOR: Final[dict[str, tuple[Part, tuple[str, ...], str]]] = {
    "no-worker": (work.check_unserved, ("contract", "queue", "type"), "waited_s"),
    "worker-silent": (work.check_lost_workers, ("worker",), "silent_s"),
    "type-unknown": (work.check_unserved, ("contract", "queue", "type"), "waited_s"),
    "reaper-behind": (work.check_upkeep, ("contract",), "age_s"),
    "xmin-pinned": (server.check_sessions, ("pid",), "age_s"),
    "outbox-behind": (work.check_outbox, ("queue",), "oldest_s"),
    "ranges-running-out": (schema.check_ranges, (), "ahead"),
}


class Mute(NamedTuple):
    """A mute: its id, and until when."""

    id: int
    until: datetime


class Alarms(EngineUser):
    """Operations on alarms; `store.alarms`."""

    async def evaluate(self, limits: AlarmLimits | None = None, *, pause_s: float = _PAUSE_S) -> int:
        """Look for all conditions, unless another process just did; returns how many alarms fired or cleared."""
        limits = limits or AlarmLimits()
        rows = await self._engine.ask("begin_alarm_round", pause_s=pause_s)
        if not rows:
            return 0
        ((began,),) = rows
        await self._engine.run(self._engine.registry.load)
        found, known, failures = list[Condition](), set[str](), list[str]()
        for kinds, read in _readers(self._engine.registry, limits):
            try:
                found += await self._engine.run(read)
                known |= set(kinds)
            except UNREACHABLE:
                raise
            except (TenureError, psycopg.Error) as error:
                failures.append(f"{', '.join(kinds)}: {first_line(error)}")
        changed = await self._store(found)
        changed += len(await self._engine.ask("clear_alarms", kinds=sorted(known), began=began.isoformat()))
        if failures:
            raise TenureError(f"conditions could not be read ({'; '.join(failures)}); their alarms stay as they are")
        return changed

    async def _store(self, conditions: Sequence[Condition]) -> int:
        """Begin alarms, or go on with them; returns how many fired."""
        found = list({(one.kind, one.tenant, one.subject): one for one in conditions}.values())
        if not found:
            return 0
        values = {
            "kinds": [one.kind for one in found], "tenants": [one.tenant for one in found],
            "subjects": [one.subject for one in found], "severities": [ALARMS[one.kind][0] for one in found],
            "holds": [one.hold_s for one in found], "values": [one.value for one in found],
            "thresholds": [one.threshold for one in found], "summaries": [one.summary for one in found],
            "nexts": [one.next for one in found], "details": [json.dumps(one.details or {}) for one in found],
        }  # fmt: skip
        return [fired for _, fired in await self._engine.ask("store_alarms", **values)].count(True)

    async def mute(
        self, kind: str | None, *, seconds: float, actor: str, tenant: str | None = None, subject: str | None = None,
        reason: str | None = None,
    ) -> Mute:  # fmt: skip
        """Send nothing about these alarms for some time; they go on, and are sent afterwards if they still hold."""
        _check_about(kind, tenant, subject)
        if reason is not None:
            validation.check_name("reason", reason)
        if not 1 <= seconds <= _MAX_MUTE_S:
            raise BadInput(f"alarms are muted for 1 s to 366 days, not {seconds:g} s")
        validation.check_name("actor", actor)
        values = {"kind": kind, "tenant": tenant, "subject": subject, "actor": actor, "reason": reason}
        (row,) = await self._engine.ask("mute_alarms", **values, seconds=seconds)
        return Mute._make(row)

    async def unmute(
        self, kind: str | None, *, actor: str, tenant: str | None = None, subject: str | None = None
    ) -> int:
        """End the mutes of exactly this kind, tenant and subject; returns how many."""
        _check_about(kind, tenant, subject)
        validation.check_name("actor", actor)
        values = {"kind": kind, "tenant": tenant, "subject": subject, "actor": actor}
        return len(await self._engine.ask("unmute_alarms", **values))

    async def test(self, actor: str) -> int:
        """Fire an alarm of the kind `test`, so that every sink is sent one; it clears at the next round."""
        text = f"{actor} tests the sinks of alarms"
        return await self._store([Condition("test", text, "nothing: it clears by itself", 1, 1, subject=actor)])

    async def take(self, sink: str, *, hold_s: float, limit: int = 20) -> Sequence[Notice]:
        """Take what this sink is to be sent; for `hold_s` seconds no other process takes it."""
        rows = await self._engine.ask("take_alarm_notices", sink=sink, hold_s=hold_s, limit=limit)
        return [Notice(change, tries, Alarm._make(alarm)) for change, tries, *alarm in rows]

    async def mark(self, notice: Notice, sink: str, error: str | None, wait_s: float = 0.0) -> None:
        """Record that a notice was sent, or why not; it is taken again after `wait_s` seconds."""
        values = {"id": notice.alarm.id, "change": notice.change, "sink": sink, "wait_s": wait_s}
        await self._engine.ask("mark_alarm_notice", **values, error=error and error[:1_000])

    async def forget(self, keep_s: float = 30 * _DAY_S) -> int:
        """Delete alarms that are over for this long; returns how many."""
        total, page = 0, 1_000
        while (done := len(await self._engine.ask("delete_old_alarms", keep_sec=keep_s, limit=page))) == page:
            total += done
        return total + done

    async def list(
        self, *, history: bool = False, tenant: str | None = None, kind: str | None = None, limit: int = 100
    ) -> list[Alarm]:
        """Return the alarms that hold, the latest first; with `history` also those that are over."""
        validation.check_integer("limit", limit, 1, 10_000)
        values = {"history": history, "tenant": tenant, "kind": kind, "limit": limit}
        return [Alarm._make(row) for row in await self._engine.ask("list_alarms", **values)]


#: The kinds that a reader decides about, and how their conditions are read.
Reader = tuple[tuple[str, ...], Callable[[], Plan[list[Condition]]]]


def _readers(registry: Registry, limits: AlarmLimits) -> list[Reader]:
    contracts = registry.contracts()
    readers: list[Reader] = [
        (("test",), _nothing),
        (("retrying-share",), partial(_retrying, contracts, limits)),
        (("dlq-pending-growth",), partial(_entries, "dlq-pending-growth", _settling_hops(contracts), limits)),
        (("dead-letters-growing",), partial(_entries, "dead-letters-growing", _letter_hops(contracts), limits)),
        (("invalid-transitions",), partial(_invalid_transitions, limits)),
        (("oldest-waiting",), partial(_oldest_waiting, limits)),
    ]
    parts: dict[Part, list[str]] = {}
    for kind, (part, _, _) in _FOUND_BY_DOCTOR.items():
        parts.setdefault(part, []).append(kind)
    readers += [(tuple(kinds), partial(_examine, part, kinds, limits, registry)) for part, kinds in parts.items()]
    return readers


def _check_about(kind: str | None, tenant: str | None, subject: str | None) -> None:
    """Refuse a kind that does not exist, and names that cannot be stored."""
    if kind is not None and kind not in ALARMS:
        raise BadInput(f"there is no alarm {kind!r}; there are {', '.join(ALARMS)}")
    for name, value in (("tenant_id", tenant), ("subject", subject)):
        if value is not None:
            validation.check_name(name, value)


def _nothing() -> Plan[list[Condition]]:
    yield from ()
    return []


def waiting_states(contract: Contract) -> list[str]:
    """The states in which jobs wait for a retry, if the contract tells them from jobs that are new."""
    ends = [path.end for path in contract.paths if path.trigger == "retry"]
    return sorted({end.state for end in ends if end.state != contract.initial and end.role != "done"})


def _settling_hops(contracts: Sequence[Contract]) -> list[tuple[str, str, str]]:
    """Contract, trigger and state of each hop to a commit point where a dead letter is recorded."""
    return [
        (contract.name, path.trigger, hop.state)
        for contract in contracts
        for path in contract.paths
        for hop in path.hops
        if hop.role == "settling" and path.trigger != "settle"
    ]


def _letter_hops(contracts: Sequence[Contract]) -> list[tuple[str, str, str]]:
    """Contract, trigger and first state of each path that records a dead letter, except behind a commit point."""
    return [
        (contract.name, path.trigger, path.hops[0].state)
        for contract in contracts
        for path in contract.paths
        if path.letter and path.trigger != "settle" and not any(hop.role == "settling" for hop in path.hops)
    ]


def _retrying(contracts: Sequence[Contract], limits: AlarmLimits) -> Plan[list[Condition]]:
    pairs = [(contract.name, state) for contract in contracts for state in waiting_states(contract)]
    values = {"contracts": [name for name, _ in pairs], "states": [state for _, state in pairs]}
    found: list[Condition] = []
    for contract, tenant, waiting, live in (
        yield statement("alarm_retrying_shares", {**values, "least": limits.retrying_least})
    ):
        share = waiting / live
        if share > limits.retrying_share:
            text = f"{waiting:,} of {live:,} live {contract} jobs of tenant {tenant} wait for a retry ({share:.0%})"
            found.append(
                Condition(
                    "retrying-share", text,
                    f"tenure jobs list {shlex.quote(str(Search(contract=contract, tenant_id=tenant)))}",
                    share, limits.retrying_share, tenant, contract, limits.retrying_for_s,
                    {"contract": contract, "waiting": waiting, "live": live},
                )
            )  # fmt: skip
    return found


def _entries(kind: str, hops: Sequence[tuple[str, str, str]], limits: AlarmLimits) -> Plan[list[Condition]]:
    values = {
        "contracts": [name for name, _, _ in hops], "triggers": [trigger for _, trigger, _ in hops],
        "states": [state for _, _, state in hops], "window_s": limits.dlq_window_s, "before_s": _DAY_S,
    }  # fmt: skip
    found: list[Condition] = []
    for contract, tenant, lately, usual, minutes, numbers in (yield statement("alarm_entries", values)):
        threshold = max(float(limits.dlq_entries), limits.dlq_factor * usual)
        if lately >= threshold:
            clears_at = _falls_below(threshold, minutes, numbers) + timedelta(seconds=limits.dlq_window_s + 60)
            which = {"contract": contract, "tenant": tenant, "window_s": limits.dlq_window_s, "bound": _OPEN}
            ((still_open,),) = yield statement("alarm_open_letters", which)
            what = "entered the state before a dead letter" if kind == "dlq-pending-growth" else "became dead letters"
            span = format_duration(limits.dlq_window_s * 1_000)
            text = (
                f"{lately:,} {contract} jobs of tenant {tenant} {what} in {span}; usual are {usual:,.1f}. "
                f"{still_open:,}{'+' * (still_open >= _OPEN)} of their dead letters are still open; "
                f"clears at about {clears_at:%H:%M} UTC if no more come"
            )
            details = {"contract": contract, "entries": lately, "usual": usual, "open": still_open}
            found.append(
                Condition(
                    kind, text, f"tenure dlq groups {shlex.join(['--contract', contract, '--tenant', tenant])}", lately,
                    threshold, tenant, contract, 0.0, {**details, "clears_at": clears_at.isoformat()},
                )
            )  # fmt: skip
    return found


def _falls_below(threshold: float, minutes: Sequence[datetime], numbers: Sequence[int]) -> datetime:
    """Return the minute without which the entries of the later ones are fewer than the threshold."""
    for minute, rest in zip(reversed(minutes), accumulate(reversed(numbers)), strict=True):
        if rest >= threshold:
            return minute
    return minutes[0]


def _invalid_transitions(limits: AlarmLimits) -> Plan[list[Condition]]:
    values = {"window_s": limits.invalid_window_s, "least": limits.invalid_transitions}
    return [
        Condition(
            "invalid-transitions",
            f"{number:,} moves of {contract} jobs of type {job_type} of tenant {tenant} were refused with {code} in "
            f"{format_duration(limits.invalid_window_s * 1_000)}, with no legal move in between",
            f"tenure jobs events {job_id}", number, limits.invalid_transitions, tenant, f"{contract} {job_type}", 0.0,
            {"contract": contract, "type": job_type, "code": code, "job_id": str(job_id)},
        )
        for contract, tenant, job_type, number, code, job_id in (yield statement("alarm_refusals", values))
    ]  # fmt: skip


def _oldest_waiting(limits: AlarmLimits) -> Plan[list[Condition]]:
    values = {"lanes": _LANES, "least_s": limits.oldest_waiting_s}
    return [
        Condition(
            "oldest-waiting", f"job {job_id} of queue {queue} is due and waits for {format_duration(waited_s * 1_000)}",
            f"tenure jobs why {job_id}", waited_s, limits.oldest_waiting_s, "", queue, 0.0,
            {"queue": queue, "job_id": str(job_id)},
        )
        for queue, job_id, waited_s in (yield statement("alarm_oldest_jobs", values))
    ]  # fmt: skip


def _examine(part: Part, kinds: Sequence[str], limits: AlarmLimits, registry: Registry) -> Plan[list[Condition]]:
    """Run a part of doctor with the thresholds of alarms; returns its findings of these kinds."""
    judged = Limits(
        unserved_s=limits.unserved_s, silent_s=limits.unserved_s, behind_s=limits.behind_s,
        snapshot_s=limits.snapshot_s, ranges_ahead=limits.ranges_ahead, lock_share=float("inf"),
    )  # fmt: skip
    exam = Exam(judged, registry=registry)

    def plan() -> Plan[list[Finding]]:
        exam.settings = dict((yield statement("doctor_settings", {"names": server.SETTINGS})))
        return (yield from part(exam))

    found: list[Finding] = yield Atomic(plan(), snapshot=True)
    thresholds = {
        "no-worker": limits.unserved_s, "worker-silent": limits.unserved_s, "type-unknown": limits.unserved_s,
        "xmin-pinned": limits.snapshot_s, "ranges-running-out": float(limits.ranges_ahead),
    }  # fmt: skip
    return [_condition(one, thresholds.get(one.code, limits.behind_s)) for one in found if one.code in kinds]


def _condition(found: Finding, threshold: float) -> Condition:
    _, keys, measure = _FOUND_BY_DOCTOR[found.code]
    return Condition(
        found.code, found.summary, found.next, float(found.details[measure]), threshold,
        "", " ".join(str(found.details[key]) for key in keys), 0.0, found.details,
    )  # fmt: skip
