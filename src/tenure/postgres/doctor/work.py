"""Parts about the work: workers, queues, upkeep, schedules, flows, datasets, wake-ups for message queues."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

from tenure.jobs.finding import FINDINGS, Finding, Severity, finding
from tenure.jobs.formats import count_of, format_duration
from tenure.jobs.unserved import UnservedType
from tenure.jobs.why import resume_command, worker_command
from tenure.postgres.statement import Plan, statement

if TYPE_CHECKING:
    from tenure.postgres.doctor.examination import Exam

_MANY, _QUEUES, _SAMPLE, _BOUND = 20, 1_000, 1_000, 1_000
_RUN_UPKEEP: Final = "tenure upkeep; its log says what prevents it"
#: The columns of a contract that the search for work that upkeep has not done needs.
_COLUMNS = ("contract", "version", "missed", "heartbeat_ms", "reclaims", "extra", "promoted")


def check_workers(exam: Exam) -> Plan[list[Finding]]:
    """Whether live workers run different versions of Tenure."""
    rows = yield statement("doctor_workers", {})
    if len(rows) < 2:
        return []
    named = "; ".join(f"{version}: {count} ({', '.join(names[:3])})" for version, count, names in rows)
    text = f"live workers run {len(rows)} versions of Tenure: {named}"
    versions = {version: count for version, count, _ in rows}
    return [finding("versions-mixed", text, "finish the deployment: tenure workers list", versions=versions)]


def check_lost_workers(exam: Exam) -> Plan[list[Finding]]:
    """Workers that are not seen any more and did not stop."""
    values = {"silent_s": exam.limits.silent_s, "since_s": exam.limits.lost_s, "limit": _MANY}
    found: list[Finding] = []
    for name, host, pid, queues, busy, _, silent_s, is_listed in (yield statement("doctor_lost_workers", values)):
        where = f" on {host} pid {pid}" if host else ""
        ran = f" It ran {count_of(busy, 'job')} then." if busy else ""
        text = (
            f"worker {name} of {', '.join(queues) or 'no queue'}{where} was last seen "
            f"{format_duration(silent_s * 1_000)} ago and did not stop: it was killed, or has no connection.{ran}"
        )
        details = {"worker": name, "host": host, "pid": pid, "silent_s": silent_s, "busy": busy}
        code = "worker-silent" if is_listed else "worker-lost"
        found.append(finding(code, text, f"tenure workers show {shlex.quote(name)}", **details))
    return found


def check_unserved(exam: Exam) -> Plan[list[Finding]]:
    """Jobs that no live worker takes."""
    values = {"queues": _QUEUES, "sample": _SAMPLE, "limit": 100, **exam.registry.reclaiming()}
    unserved = [UnservedType._make(row) for row in (yield statement("find_unserved_types", values))]
    found: list[Finding] = []
    for one in unserved:
        if one.waited_s < exam.limits.unserved_s:
            continue
        waits = (
            f"{one.jobs:,} or more jobs wait in queue {one.queue}, the oldest for "
            f"{format_duration(one.waited_s * 1_000)}"
        )
        details: dict[str, Any] = {
            "contract": one.contract,
            "queue": one.queue,
            "type": one.type,
            "waited_s": one.waited_s,
        }
        if one.takers:
            next_ = "start a worker whose code has the task: tenure workers list; or tenure types list"
            found.append(finding("type-unknown", f"{one.sentence()}: {waits}", next_, **details))
        else:
            found.append(finding("no-worker", f"{one.sentence()}: {waits}", worker_command(one.queue), **details))
    return found


def check_queues(exam: Exam) -> Plan[list[Finding]]:
    """Paused queues in which jobs wait."""
    contracts = [contract.name for contract in exam.registry.contracts()]
    rows = yield statement("doctor_paused_queues", {"contracts": contracts, "bound": _BOUND, "limit": _MANY})
    found: list[Finding] = []
    for queue, age_s, by, reason, number in rows:
        why = f" ({reason})" if reason else ""
        text = (
            f"queue {queue} is paused by {by} for {format_duration(age_s * 1_000)}{why}; "
            f"{number:,}{'+' if number >= _BOUND else ''} jobs wait in it"
        )
        found.append(finding("queue-paused", text, resume_command(queue), queue=queue, paused_by=by, jobs=number))
    return found


def check_upkeep(exam: Exam) -> Plan[list[Finding]]:
    """Expired leases, jobs at a commit point and due waits that upkeep has not dealt with."""
    registry, least_s, found = exam.registry, exam.limits.behind_s, list[Finding]()
    known = [bound.claim for contract in registry.contracts() for bound in registry.versions(contract.name)]
    values = {name: [claim[name] for claim in known] for name in _COLUMNS}
    for contract, expired, expired_s, expired_id, settling_s, settling_id, due_s, due_id in (
        yield statement("doctor_upkeep", values)
    ):
        for code, age_s, job_id, what in (
            (
                "reaper-behind",
                expired_s,
                expired_id,
                f"{expired:,} expired leases of contract {contract} are not closed",
            ),
            ("settling-behind", settling_s, settling_id, f"a job of contract {contract} stays at its commit point"),
            ("promotion-behind", due_s, due_id, f"a waiting job of contract {contract} is due and not made ready"),
        ):
            if age_s is not None and age_s >= least_s:
                text = f"{what}, the oldest for {format_duration(age_s * 1_000)} (job {job_id})"
                found.append(finding(code, text, _RUN_UPKEEP, contract=contract, job_id=str(job_id), age_s=age_s))
    return found


def check_alarms(exam: Exam) -> Plan[list[Finding]]:
    """Whether upkeep looks for alarms, which hold now, and whether their sinks take notices."""
    ((round_s, sink, error, failing_s),) = yield statement("doctor_alarms", {})
    found: list[Finding] = []
    if round_s is not None and round_s >= exam.limits.alarm_round_s:
        text = f"upkeep looked for alarms {format_duration(round_s * 1_000)} ago, and looks every 15 s where it runs"
        next_ = "tenure upkeep, or tenure serve; where TENURE_ALARMS=off everywhere, this is expected"
        found.append(finding("upkeep-not-running", text, next_, age_s=round_s))
    # Alarms about what doctor examines itself are not told twice.
    firing = yield statement("doctor_firing_alarms", {"known": list(FINDINGS), "limit": _MANY})
    for kind, severity, summary, next_, age_s, is_muted, tenant, subject, _ in firing:
        text = f"{kind} ({severity}{', muted' * is_muted}) for {format_duration(age_s * 1_000)}: {summary}"
        details = {"kind": kind, "tenant_id": tenant or None, "subject": subject or None, "age_s": age_s}
        worth: Severity | None = "note" if is_muted or severity == "P3" else None
        found.append(finding("alarm-firing", text, next_, severity=worth, **details))
    if firing and firing[0][-1] > len(firing):
        text = f"{firing[0][-1] - len(firing):,} more alarms hold now"
        found.append(finding("alarm-firing", text, "tenure alarms list"))
    if sink is not None:
        text = f"the {sink} does not take a notice since {format_duration(failing_s * 1_000)}: {error}"
        found.append(finding("alarm-not-sent", text, "correct the sink; tenure alarms test", sink=sink, error=error))
    return found


def check_other_work(exam: Exam) -> Plan[list[Finding]]:
    """Schedules, flows, rollbacks and subscriptions that stand still, and jobs that claims skip."""
    rows = yield statement("doctor_work", {"limit": _BOUND})
    return [
        found
        for what, subject, age_s, reason in rows
        if (found := _explain_work(exam, what, subject, age_s, reason)) is not None
    ]


def _explain_work(exam: Exam, what: str, subject: str, age_s: float, reason: str | None) -> Finding | None:
    since = format_duration(max(0.0, age_s) * 1_000)
    details: dict[str, Any] = {"subject": subject, "age_s": age_s, "reason": reason}
    if what == "jobs-quarantined":
        number = int(subject)
        text = f"{number:,}{'+' if number >= _BOUND else ''} jobs cannot be logged, and claims skip them: {reason}"
        return finding(what, text, "tenure verify", **details) if number else None
    if what == "subscription-fails":
        return finding(
            what,
            f"events of a dataset do not reach task {subject}: {reason}",
            "correct the task; tenure upkeep tries it again",
            **details,
        )
    if age_s < exam.limits.behind_s:
        return None
    text, next_ = {
        "schedules-behind": (f"schedule {subject} is due since {since} and is not fired", _RUN_UPKEEP),
        "flows-behind": (
            f"flow {subject} does not go on, although a job of it ended {since} ago",
            f"tenure flows show {subject}; tenure upkeep",
        ),
        "rollback-unfinished": (
            f"rollback {subject} of datasets has not cancelled the jobs that wait to write, for {since}", _RUN_UPKEEP,
        ),
    }[what]  # fmt: skip
    return finding(what, text, next_, **details)


def check_outbox(exam: Exam) -> Plan[list[Finding]]:
    """Wake-ups for message queues that are late, and queues without a publisher."""
    found: list[Finding] = []
    for queue, _, _, _, unseen_s, due, oldest_s, error, _ in (
        yield statement("list_published_queues", {"bound": _BOUND})
    ):
        if unseen_s >= exam.limits.publisher_s:
            text = f"no process publishes the wake-ups of queue {queue} for {format_duration(unseen_s * 1_000)}"
            next_ = "tenure upkeep, or tenure serve, with TENURE_SQS_QUEUES"
            found.append(finding("publisher-missing", text, next_, queue=queue, unseen_s=unseen_s))
        if oldest_s is not None and oldest_s >= exam.limits.behind_s:
            why = f": {error}" if error else ""
            text = (
                f"{due:,} wake-ups of queue {queue} are not published, the oldest for "
                f"{format_duration(oldest_s * 1_000)}{why}"
            )
            found.append(
                finding(
                    "outbox-behind", text, "tenure outbox list; tenure outbox retry", queue=queue, oldest_s=oldest_s
                )
            )
    return found
