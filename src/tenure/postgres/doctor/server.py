"""Parts about the server: settings, connections, disk, clocks, sessions, prepared transactions, replication slots."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from tenure.errors import NotPermitted, TenureError
from tenure.jobs.finding import Finding, finding
from tenure.jobs.formats import format_duration
from tenure.postgres.statement import Plan, statement

if TYPE_CHECKING:
    from tenure.postgres.doctor.examination import Exam

#: The oldest PostgreSQL that Tenure works with.
MIN_VERSION = 150_000
#: At most this many sessions, slots… are listed.
_MANY = 10
#: The settings that are read before this session changes any.
SETTINGS: Final = (
    "fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names", "autovacuum", "track_counts",
    "default_transaction_read_only", "default_transaction_isolation", "statement_timeout", "lock_timeout",
    "idle_in_transaction_session_timeout", "idle_session_timeout", "transaction_timeout", "max_connections",
    "superuser_reserved_connections", "reserved_connections", "max_locks_per_transaction", "max_prepared_transactions",
    "data_directory", "autovacuum_freeze_max_age",
)  # fmt: skip


def explain_unreachable(error: TenureError) -> Finding:
    """The finding about a database to which no connection can be made."""
    reason, _, hint = str(error).partition(". Next: ")
    if "too many clients" in reason or "remaining connection slots" in reason or "too many connections" in reason:
        next_ = "end idle connections (select * from pg_stat_activity), raise max_connections, or use a pooler"
        return finding("too-few-connections", f"no connection is free: {reason}", next_, severity="critical")
    code = "the login is refused" if isinstance(error, NotPermitted) else "the database cannot be reached"
    return finding("cannot-connect", f"{code}: {reason}", hint or "check DATABASE_URL, and that the database runs")


def check_settings(exam: Exam) -> Plan[list[Finding]]:
    """Settings of the server, the database and the role that lose data or cut off work."""
    exam.settings = dict((yield statement("doctor_settings", {"names": SETTINGS})))
    return [*_durability(exam.settings), *_timeouts(exam)]


def _durability(settings: Mapping[str, str]) -> Iterator[Finding]:
    reload = "select pg_reload_conf()"
    if settings["fsync"] == "off":
        text = "fsync is off: when the machine crashes, the database may be destroyed"
        yield finding("fsync-off", text, f"alter system set fsync = on; {reload}")
    if settings["full_page_writes"] == "off":
        text = "full_page_writes is off: when the machine crashes, pages may be half written"
        yield finding("full-page-writes-off", text, f"alter system set full_page_writes = on; {reload}")
    if settings["synchronous_commit"] == "off":
        text = "synchronous_commit is off: a crash of the server loses jobs and results that were confirmed"
        yield finding(
            "synchronous-commit-off",
            text,
            "set synchronous_commit = on where it was changed: the server, the database or the role",
        )
    if settings["autovacuum"] == "off":
        text = "autovacuum is off: tables that upkeep does not vacuum keep their dead rows, and transaction ids run out"
        yield finding("autovacuum-off", text, f"alter system set autovacuum = on; {reload}")
    if settings["track_counts"] == "off":
        text = "track_counts is off: neither autovacuum nor upkeep can see dead rows"
        yield finding("track-counts-off", text, "set track_counts = on where it was changed")
    if settings["default_transaction_isolation"] != "read committed":
        text = (
            f"sessions begin at {settings['default_transaction_isolation']}: callers' transactions fail, as do "
            "processes behind a pooler"
        )
        yield finding("isolation-level", text, "alter role … set default_transaction_isolation = 'read committed'")


def _timeouts(exam: Exam) -> Iterator[Finding]:
    limits = exam.limits
    for name, code, least_ms, harm in (
        ("statement_timeout", "statement-timeout-short", limits.statement_timeout_ms,
         "enqueues in callers' transactions and from SQL are cut off"),
        ("lock_timeout", "lock-timeout-short", limits.lock_timeout_ms,
         "callers' transactions fail where they would wait for a key or a row for a moment"),
        ("idle_in_transaction_session_timeout", "idle-in-transaction-timeout-short", limits.idle_in_transaction_ms,
         "callers' transactions end between two statements"),
        ("idle_session_timeout", "idle-session-timeout-short", limits.idle_session_ms,
         "idle connections are cut off again and again, and listeners miss wake-ups"),
        ("transaction_timeout", "transaction-timeout-short", limits.transaction_timeout_ms,
         "upkeep, vacuum and migrations are cut off; Tenure does not change it"),
    ):  # fmt: skip
        ms = int(exam.settings.get(name, "0"))
        if 0 < ms < least_ms:
            text = f"{name} is {format_duration(ms)} for this role and database: {harm}"
            yield finding(code, text, f"alter role … (or database …) set {name} = 0", setting=name, ms=ms)


def check_server(exam: Exam) -> Plan[list[Finding]]:
    """The server itself: version, role in replication, encoding, connections, transaction ids, disk."""
    ((
        version, in_recovery, encoding, xid_age, database_limit, role_limit, clients, database_clients, role_clients,
        notifications, sync_standbys, sees_sessions, _, role,
    ),) = yield statement("doctor_server", {})  # fmt: skip
    found: list[Finding] = []
    limits, settings = exam.limits, exam.settings
    if version < MIN_VERSION:
        text = f"the server is PostgreSQL {version // 10_000}; Tenure needs {MIN_VERSION // 10_000} or newer"
        found.append(finding("old-postgresql", text, "upgrade the server with pg_upgrade", version=version))
    if in_recovery:
        text = "the server is a standby: it accepts no jobs and no claims"
        found.append(
            finding(
                "read-only-server",
                text,
                "name all servers in DATABASE_URL, so that the primary is found; or promote this one",
            )
        )
    elif settings["default_transaction_read_only"] == "on":
        text = "sessions of this role and database are read-only: no job can be made, claimed or ended"
        found.append(
            finding("read-only-server", text, "alter role … (or database …) reset default_transaction_read_only")
        )
    names = settings["synchronous_standby_names"]
    waits = names and settings["synchronous_commit"] not in ("off", "local")
    if waits and not sync_standbys and sees_sessions and not in_recovery:
        text = f"commits wait for a standby of synchronous_standby_names ({names}), and none is connected"
        next_ = "start the standby, or alter system reset synchronous_standby_names; select pg_reload_conf()"
        found.append(finding("no-synchronous-standby", text, next_))
    if encoding != "UTF8":
        text = f"the encoding of the database is {encoding}: texts with other characters are refused"
        found.append(
            finding("encoding-not-utf8", text, "create the database anew with encoding UTF8, and move the data")
        )
    found += _connections(
        exam, [
            ("max_connections", int(settings["max_connections"]) - int(settings["superuser_reserved_connections"])
             - int(settings.get("reserved_connections", "0")), clients),
            ("the limit of this database", database_limit, database_clients),
            (f"the limit of role {role}", role_limit, role_clients),
        ],
    )  # fmt: skip
    if notifications >= limits.notification_share:
        text = (
            f"PostgreSQL's notification queue is {notifications:.0%} full: from half on, jobs are made without wake-ups"
        )
        next_ = (
            "end the session that listens inside an open transaction: select pid, application_name from "
            "pg_stat_activity where state like 'idle in transaction%' order by xact_start"
        )
        found.append(finding("notifications-full", text, next_, share=notifications))
    if xid_age >= limits.xid_age:
        text = (
            f"the oldest rows of the database are {xid_age:,} transactions old: at 2.1 billion PostgreSQL "
            "refuses to go on"
        )
        found.append(
            finding(
                "wraparound-near", text, "end what holds old rows (see xmin-pinned), then vacuum freeze", age=xid_age
            )
        )
    if not sees_sessions:
        text = (
            f"role {role} does not see sessions of other roles: old transactions and blockers of others are not found"
        )
        found.append(finding("sessions-hidden", text, f"grant pg_monitor to {role}"))
    return [*found, *_disk(exam)]


def _connections(exam: Exam, limits: list[tuple[str, int | None, int]]) -> Iterator[Finding]:
    for name, most, used in limits:
        if most is None or most < 0:
            continue
        free = most - used
        if free < exam.limits.free_connections or used >= exam.limits.connection_share * most:
            text = f"{name} leaves {max(free, 0)} of {most} connections: a worker takes 5, upkeep 8, a dispatcher 11"
            yield finding(
                "too-few-connections", text, "raise the limit, or put a pooler in transaction mode before the database",
                severity="critical" if free <= 0 else None, limit=most, used=used,
            )  # fmt: skip
            return


def _disk(exam: Exam) -> Iterator[Finding]:
    """Only where the server is reached by a socket of this machine, and the role may read where its files are."""
    directory = exam.settings.get("data_directory")
    if not exam.is_local or not directory or not os.path.isdir(directory):
        return
    try:
        total, _, free = shutil.disk_usage(directory)
    except OSError:
        return
    if total and free / total <= exam.limits.disk_share:
        text = f"{free / 2**30:,.1f} of {total / 2**30:,.1f} GiB are free on the disk of the database"
        yield finding(
            "disk-nearly-full", text, f"make room: df -h {directory}; see slot-holds-wal, and TENURE_KEEP_JOBS",
            free=free, total=total,
        )  # fmt: skip


def check_clock(exam: Exam) -> Plan[list[Finding]]:
    """Whether the database's clock differs from this machine's, or went back behind times that were written."""
    before = exam.now()
    ((at, latest),) = yield statement("doctor_clock", {})
    after = exam.now()
    found: list[Finding] = []
    # The reading may be from any moment of the round trip.
    skew = max(timedelta(0), before - at, at - after)
    if skew.total_seconds() > exam.limits.skew_s:
        ahead = "behind" if at < before else "ahead of"
        text = (
            f"the database's clock is {format_duration(skew.total_seconds() * 1_000)} {ahead} this machine's; "
            "the database's decides"
        )
        found.append(
            finding(
                "clock-skew",
                text,
                "synchronise both clocks: chronyc tracking, or timedatectl",
                seconds=skew.total_seconds(),
            )
        )
    if latest is not None and (latest - at).total_seconds() > exam.limits.skew_s:
        gap = (latest - at).total_seconds()
        text = (
            f"rows were written {format_duration(gap * 1_000)} after the database's present time: its clock "
            "went back, and leases last longer"
        )
        found.append(
            finding(
                "clock-went-back", text, "synchronise the clock of the database server: chronyc tracking", seconds=gap
            )
        )
    return found


def check_sessions(exam: Exam) -> Plan[list[Finding]]:
    """Transactions that keep an old snapshot."""
    limits, found = exam.limits, list[Finding]()
    rows = yield statement("doctor_sessions", {"least_s": limits.snapshot_s, "limit": _MANY})
    for pid, user, application, state, age_s, query in rows:
        who = f"{application or 'a program'} (pid {pid}, role {user or 'unknown'}, {state or 'unknown state'})"
        text = (
            f"a transaction of {who} is open for {format_duration(age_s * 1_000)}: no row that died since can "
            "be removed"
        )
        found.append(
            finding(
                "xmin-pinned", text, f"select pg_terminate_backend({pid})",
                severity="critical" if age_s >= limits.snapshot_critical_s else None,
                pid=pid, user=user, application=application, state=state, age_s=age_s, query=query,
            )
        )  # fmt: skip
    return found


def check_prepared(exam: Exam) -> Plan[list[Finding]]:
    """Prepared transactions that nobody has ended."""
    rows = yield statement("doctor_prepared", {"least_s": exam.limits.prepared_s, "limit": _MANY})
    return [
        finding(
            "transaction-prepared",
            f"prepared transaction {gid!r} of role {owner} waits for its end for {format_duration(age_s * 1_000)}",
            f"rollback prepared '{gid.replace(chr(39), chr(39) * 2)}' (or commit prepared)",
            gid=gid, owner=owner, age_s=age_s,
        )
        for gid, owner, age_s in rows
    ]  # fmt: skip


def check_slots(exam: Exam) -> Plan[list[Finding]]:
    """Replication slots that keep dead rows or WAL."""
    limits, found = exam.limits, list[Finding]()
    for name, active, xmin_age, wal_bytes, wal_status in (yield statement("doctor_slots", {})):
        drop = f"start its consumer, or select pg_drop_replication_slot('{name}')"
        if xmin_age is not None and xmin_age >= limits.slot_transactions:
            text = f"replication slot {name} keeps the rows that {xmin_age:,} transactions have made dead"
            found.append(finding("slot-holds-rows", text, drop, slot=name, transactions=xmin_age))
        if wal_status == "lost" or (not active and wal_bytes is not None and wal_bytes >= limits.slot_bytes):
            text = (
                f"replication slot {name} is {wal_status or 'unused'} and keeps "
                f"{(wal_bytes or 0) / 2**20:,.0f} MiB of WAL"
            )
            found.append(finding("slot-holds-wal", text, drop, slot=name, bytes=wal_bytes, status=wal_status))
    return found


def check_blocked(exam: Exam) -> Plan[list[Finding]]:
    """Sessions of Tenure that wait for somebody's lock."""
    rows = yield statement("doctor_blocked", {"least_s": exam.limits.blocked_s, "limit": _MANY})
    return [
        finding(
            "session-blocked",
            f"{application or 'a session'} (pid {pid}) waits for {format_duration(waited_s * 1_000)} for a lock of "
            f"{blocker or 'a program'} (pid {blocking}, role {user or 'unknown'}, {state or 'unknown state'})",
            f"select pg_terminate_backend({blocking})", pid=pid, blocking_pid=blocking, waited_s=waited_s,
        )
        for pid, application, waited_s, blocking, user, blocker, state in rows
    ]  # fmt: skip
