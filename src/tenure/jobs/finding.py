"""Findings of `tenure doctor`: what is wrong, how bad it is, and the next command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tenure.jobs.formats import to_one_line

Severity = Literal["critical", "warning", "note"]
SEVERITIES: Final[tuple[Severity, ...]] = ("critical", "warning", "note")

#: Every finding, by its code: how bad it is if nothing else is said, and what it means.
FINDINGS: Final[Mapping[str, tuple[Severity, str]]] = {
    # The server
    "cannot-connect": ("critical", "the database cannot be reached"),
    "old-postgresql": ("critical", "the server is older than PostgreSQL 15"),
    "read-only-server": ("critical", "the server is a standby, or its sessions are read-only"),
    "fsync-off": ("critical", "a crash of the machine can destroy the database"),
    "full-page-writes-off": ("critical", "a crash of the machine can destroy pages"),
    "synchronous-commit-off": ("critical", "a crash of the server loses jobs and results that were confirmed"),
    "no-synchronous-standby": ("critical", "commits wait for a synchronous standby, and none is connected"),
    "too-few-connections": ("warning", "few connections are left, or the limit is lower than Tenure needs"),
    "autovacuum-off": ("warning", "dead rows stay where upkeep may not vacuum, and transaction ids run out"),
    "track-counts-off": ("warning", "neither autovacuum nor upkeep can see dead rows"),
    "encoding-not-utf8": ("warning", "texts with characters that the encoding lacks are refused"),
    "isolation-level": ("warning", "sessions begin at another isolation level than read committed"),
    "statement-timeout-short": ("warning", "statements in callers' transactions are cut off"),
    "lock-timeout-short": ("warning", "callers' transactions do not wait for a key or a row in use"),
    "idle-in-transaction-timeout-short": ("warning", "callers' transactions end between two statements"),
    "idle-session-timeout-short": ("warning", "idle connections and listeners are cut off again and again"),
    "transaction-timeout-short": ("warning", "transactions of upkeep and migrations are cut off"),
    "wraparound-near": ("critical", "PostgreSQL will soon refuse new transactions"),
    "disk-nearly-full": ("warning", "the disk of the database is nearly full"),
    "locks-too-few": ("warning", "the lock table has less room than the tables and indexes need"),
    "clock-skew": ("warning", "the clocks of the database and of this machine differ"),
    "clock-went-back": ("warning", "rows were written at times that the database's clock has not reached"),
    "direct-address-missing": ("warning", "a pooler is in between, and TENURE_DIRECT_URL is not set"),
    "direct-address-wrong": ("critical", "TENURE_DIRECT_URL leads to another database, or to none"),
    # Sessions
    "xmin-pinned": ("warning", "an old transaction keeps dead rows, and claims get slower"),
    "transaction-prepared": ("warning", "a prepared transaction was never ended: it keeps locks and dead rows"),
    "slot-holds-rows": ("warning", "a replication slot keeps dead rows"),
    "slot-holds-wal": ("warning", "a replication slot that nobody reads fills the disk with WAL"),
    "session-blocked": ("warning", "a session of Tenure waits for a lock of another session"),
    "notifications-full": ("warning", "PostgreSQL's notification queue fills up: wake-ups are left out"),
    "sessions-hidden": ("note", "this role does not see other users' sessions, so some findings are missing"),
    # The schema
    "schema-missing": ("critical", "the database has no schema of Tenure"),
    "migration-missing": ("critical", "the database was not migrated to this release"),
    "database-newer": ("critical", "a newer release has migrated the database"),
    "migration-changed": ("critical", "a migration was applied with another text"),
    "contract-not-registered": ("critical", "a contract of this release is not registered"),
    "contract-unreadable": ("warning", "this release, or its settings, cannot read a registered contract"),
    "contract-unknown": ("critical", "live jobs have a contract version that no process can move"),
    "rights-missing": ("critical", "this role lacks rights that processes of Tenure need"),
    "not-owner": ("note", "this role cannot vacuum or drop ranges: upkeep needs the owner's role"),
    "index-missing": ("critical", "an index is missing: claims or upkeep read whole tables"),
    "index-invalid": ("warning", "an index is not valid: PostgreSQL does not use it"),
    "log-unprotected": ("critical", "a trigger that protects the log is missing or disabled"),
    "unlogged-table": ("critical", "a table is unlogged: a crash empties it"),
    "ranges-running-out": ("critical", "few ids are left for which the log and the history have partitions"),
    "partition-missing": ("critical", "a range of ids has no partition of the log or of the history"),
    "detach-unfinished": ("warning", "the drop of an old range was begun and not finished"),
    "dead-rows": ("warning", "a hot table has many dead rows: vacuum does not keep up"),
    # The work
    "no-worker": ("warning", "jobs wait in a queue that no live worker serves"),
    "type-unknown": ("warning", "jobs wait whose type no live worker of their queue knows"),
    "worker-silent": ("warning", "a worker is not seen any more and did not stop"),
    "worker-lost": ("note", "a worker did not stop and was taken from the list in the last hour"),
    "versions-mixed": ("note", "live workers run different versions of Tenure"),
    "queue-paused": ("note", "jobs wait in a paused queue"),
    "jobs-quarantined": ("warning", "claims skip jobs that cannot be logged"),
    "upkeep-not-running": ("critical", "upkeep has not looked for alarms for long: no process runs it"),
    "alarm-firing": ("warning", "an alarm holds now; a note if its severity is P3 or it is muted"),
    "alarm-not-sent": ("warning", "a sink does not take the notices of alarms"),
    "reaper-behind": ("warning", "expired leases are not closed"),
    "settling-behind": ("warning", "jobs stay at a commit point of their contract"),
    "promotion-behind": ("warning", "waiting jobs are due and are not made ready"),
    "schedules-behind": ("warning", "a schedule is due and is not fired"),
    "flows-behind": ("warning", "a flow does not go on although its job has ended"),
    "rollback-unfinished": ("warning", "a rollback of datasets has not cancelled the jobs that wait to write"),
    "subscription-fails": ("warning", "a dataset's event cannot be given to its task"),
    "outbox-behind": ("warning", "wake-ups for message queues are not published"),
    "publisher-missing": ("warning", "no process publishes the wake-ups of a queue"),
    # Doctor itself
    "check-failed": ("warning", "a part of the examination could not be done"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: its code, what is the matter in this case, and the next command."""

    code: str
    summary: str
    #: A command to run, or what to change.
    next: str
    severity: Severity
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The fields that JSON shows."""
        return {
            "code": self.code, "severity": self.severity, "summary": self.summary, "next": self.next,
            "details": dict(self.details),
        }  # fmt: skip


def finding(code: str, summary: str, next_: str, *, severity: Severity | None = None, **details: Any) -> Finding:
    """A finding of the catalogue, as bad as that says unless told otherwise; texts become one line each."""
    return Finding(code, to_one_line(summary), to_one_line(next_, 500), severity or FINDINGS[code][0], details)


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings in the order in which to deal with them: the worst first, then as the catalogue has them."""
    order = list(FINDINGS)
    return sorted(findings, key=lambda one: (SEVERITIES.index(one.severity), order.index(one.code), one.summary))


def worst(findings: Sequence[Finding]) -> Severity | None:
    """Return the worst severity; None without findings."""
    return min((one.severity for one in findings), key=SEVERITIES.index, default=None)
