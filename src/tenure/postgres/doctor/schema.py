"""Parts about the schema: migrations, contracts, rights, indexes and guards, id ranges, vacuum."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tenure.contracts import BUILT_IN
from tenure.contracts.stored_form import from_description
from tenure.jobs.finding import Finding, finding
from tenure.jobs.formats import format_duration
from tenure.postgres.migrate import migrations
from tenure.postgres.registry import Registry
from tenure.postgres.statement import Plan, statement

if TYPE_CHECKING:
    from tenure.postgres.doctor.examination import Exam

#: The rights that a process which works on jobs needs.
_RIGHTS: Final = {
    "job": ("select", "insert", "update", "delete"), "job_done": ("select", "insert"), "event": ("select", "insert"),
    "claim": ("select", "insert", "delete"), "key": ("select", "insert", "delete"), "contract": ("select",),
    "range": ("select",), "dead_letter": ("select", "insert", "update"),
    "worker": ("select", "insert", "update", "delete"),
    "queue": ("select", "insert", "update"), "job_type": ("select", "insert", "update"),
    "outbox": ("select", "insert", "update", "delete"), "schedule": ("select", "insert", "update", "delete"),
    "flow": ("select", "insert", "update", "delete"), "dataset": ("select", "insert", "update", "delete"),
}  # fmt: skip
#: The indexes without which claims or upkeep read whole tables.
_INDEXES: Final = (
    "job_pkey", "job_ready", "job_ready_tenant", "job_held", "job_waiting", "job_quarantined", "job_done_pkey",
    "event_pkey", "claim_pkey", "claim_at", "key_pkey", "dead_letter_open", "outbox_pending", "outbox_check",
    "schedule_next", "flow_node_flow", "flow_open",
)  # fmt: skip
_HOT_TABLES: Final = (
    "job", "claim", "worker", "outbox", "flow_end", "flow_node", "schedule", "dataset_delivery", "dataset_event",
)  # fmt: skip
_MANY, _LANES, _SAMPLE = 20, 10_000, 5_000
_MIGRATE = "tenure migrate"


def check_migrations(exam: Exam) -> Plan[list[Finding]]:
    """Whether the schema is there, and is this release's; the parts about its tables need that."""
    ((exists, may_read),) = yield statement("doctor_has_schema", {})
    if not exists:
        return [finding("schema-missing", "the database has no schema of Tenure", _MIGRATE)]
    if not may_read:
        text = "this role may not use the schema tenure"
        return [finding("rights-missing", text, f"{_MIGRATE} --grants, and grant tenure_app to the role")]
    applied = {number: (name, checksum) for number, name, checksum in (yield statement("doctor_migrations", {}))}
    ours = {one.number: one for one in migrations()}
    found: list[Finding] = []
    if newer := sorted(set(applied) - set(ours)):
        text = (
            f"the database has migration {newer[-1]}, this release knows {max(ours)}: a newer release has migrated it"
        )
        found.append(finding("database-newer", text, "upgrade tenure here", migrations=newer))
    if missing := [one.name for number, one in sorted(ours.items()) if number not in applied]:
        text = f"migrations are missing: {', '.join(missing)}"
        found.append(finding("migration-missing", text, _MIGRATE, migrations=missing))
    changed = [one.name for number, one in ours.items() if number in applied and applied[number][1] != one.checksum]
    if changed:
        text = f"applied with another text than this release has: {', '.join(changed)}"
        found.append(
            finding("migration-changed", text, "install the release that made this database", migrations=changed)
        )
    exam.has_schema = not missing
    return found


def check_rights(exam: Exam) -> Plan[list[Finding]]:
    """Rights of this role on tables, and whether it owns them."""
    pairs = [(relation, privilege) for relation, rights in _RIGHTS.items() for privilege in rights]
    values = {"relations": [one for one, _ in pairs], "privileges": [one for _, one in pairs]}
    lacking: defaultdict[str, list[str]] = defaultdict(list)
    for relation, privilege in (yield statement("doctor_rights", values)):
        lacking[relation].append(privilege)
    found: list[Finding] = []
    if lacking:
        named = ", ".join(f"{' and '.join(rights)} on {relation}" for relation, rights in list(lacking.items())[:4])
        more = f" and {len(lacking) - 4} more tables" if len(lacking) > 4 else ""
        found.append(
            finding(
                "rights-missing", f"this role lacks {named}{more}",
                f"{_MIGRATE} --grants, and grant tenure_app to the role", rights=dict(lacking),
            )
        )  # fmt: skip
    ((owned,),) = yield statement("check_ownership", {})
    if not owned:
        text = "this role does not own the tables: it cannot vacuum them or drop old ranges"
        found.append(finding("not-owner", text, "tenure upkeep once more, as the role that migrated"))
    return found


def check_objects(exam: Exam) -> Plan[list[Finding]]:
    """Indexes, the guards of the log, and how tables are stored and vacuumed."""
    found: list[Finding] = []
    for what, name in (yield statement("doctor_objects", {"indexes": _INDEXES, "limit": _MANY})):
        text, next_ = {
            "index-missing": (
                f"index {name} is missing: statements that need it read the whole table",
                f"make it again as {_MIGRATE} --print shows it, with create index concurrently",
            ),
            "index-invalid": (
                f"index {name} is not valid: its creation was broken off",
                f"reindex index concurrently tenure.{name}",
            ),
            "log-unprotected": (
                f"trigger {name} of tenure.event is missing or disabled: log rows can be changed",
                f"alter table tenure.event enable trigger {name}; then tenure verify",
            ),
            "unlogged-table": (
                f"table {name} is unlogged: a crash empties it",
                f"alter table tenure.{name} set logged",
            ),
            "autovacuum-off": (
                f"autovacuum is off for table {name}",
                f"alter table tenure.{name} reset (autovacuum_enabled)",
            ),
        }[what]  # fmt: skip
        found.append(finding(what, text, next_, name=name))
    return found


def check_contracts(exam: Exam) -> Plan[list[Finding]]:
    """Whether contracts are registered and readable, and live jobs have a contract version that can be moved."""
    exam.registry = Registry()
    known, found = set[tuple[str, str]](), list[Finding]()
    for name, version, declared, _ in (yield statement("list_contract_versions", {})):
        known.add((name, version))
        try:
            contract = from_description(json.loads(declared) if isinstance(declared, str) else declared)
            exam.registry.add(contract.with_numbers((exam.numbers or {}).get(name, {})))
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            text = f"contract {name} {version} is registered, and this release with its settings cannot use it: {error}"
            next_ = f"upgrade tenure here, or correct TENURE_{name.upper()}_…"
            found.append(finding("contract-unreadable", text, next_, contract=name, version=version))
    for contract in BUILT_IN.values():
        if (contract.name, contract.version) not in known:
            text = f"contract {contract.name} {contract.version} of this release is not registered"
            found.append(finding("contract-not-registered", text, _MIGRATE, contract=contract.name))
    for name, version, job_id in (yield statement("doctor_live_versions", {"lanes": _LANES, "sample": _SAMPLE})):
        if (name, version) not in known:
            text = (
                f"live jobs have contract {name} {version}, which is not registered: no process can move job {job_id}"
            )
            next_ = f"{_MIGRATE} --app module:app, with the release that knows it; tenure jobs show {job_id}"
            found.append(finding("contract-unknown", text, next_, contract=name, version=version, job_id=str(job_id)))
    return found


def check_ranges(exam: Exam) -> Plan[list[Finding]]:
    """Id ranges that run out or lack partitions, and whether the lock table has room for all of them."""
    ((last_id, ranges, ends_at, ahead, without, half_detached, relations),) = yield statement("doctor_ranges", {})
    return list(_ranges(exam, last_id, ranges, ends_at, ahead, without, half_detached, relations))


def _ranges(
    exam: Exam, last_id: int | None, ranges: int, ends_at: int | None, ahead: int, without: list[int],
    half_detached: int, relations: int,
) -> Iterator[Finding]:  # fmt: skip
    if last_id is not None and ahead < exam.limits.ranges_ahead:
        left = max(0, (ends_at or 0) - last_id - 1)
        text = f"{left:,} job ids are left, and {ahead} empty ranges: upkeep makes four ahead"
        yield finding(
            "ranges-running-out", text, "tenure upkeep --once, as the role that migrated", left=left, ahead=ahead
        )
    for low in without:
        text = f"the ids from {low:,} on have no partition of the log or of the history: their jobs cannot be moved"
        yield finding(
            "partition-missing", text, "attach the tables event_… and job_done_… again; tenure verify", low=low
        )
    if half_detached:
        text = f"{half_detached} partitions are half detached: no other old range can be dropped"
        yield finding(
            "detach-unfinished", text, "tenure upkeep --once, as the role that migrated", partitions=half_detached
        )
    settings = exam.settings
    slots = int(settings["max_locks_per_transaction"]) * (
        int(settings["max_connections"]) + int(settings["max_prepared_transactions"])
    )
    if relations > exam.limits.lock_share * slots:
        text = (
            f"{ranges} ranges make {relations:,} tables and indexes, and the lock table has room for about {slots:,}: "
            "pg_dump and your own queries over all history fail"
        )
        wanted = -(-2 * relations // (int(settings["max_connections"]) + int(settings["max_prepared_transactions"])))
        next_ = f"alter system set max_locks_per_transaction = {wanted}; and restart; or a shorter TENURE_KEEP_JOBS"
        yield finding("locks-too-few", text, next_, relations=relations, slots=slots, ranges=ranges)


def check_hot_tables(exam: Exam) -> Plan[list[Finding]]:
    """Small tables whose dead rows slow claims down."""
    found: list[Finding] = []
    for name, live, dead, size, ago_s in (yield statement("doctor_hot_tables", {"tables": _HOT_TABLES})):
        if dead >= exam.limits.dead_rows and dead > live:
            last = "never" if ago_s is None else f"{format_duration(ago_s * 1_000)} ago"
            text = f"table {name} has {dead:,} dead rows beside {live:,} live ones; vacuumed last: {last}"
            next_ = f"end what holds old rows (xmin-pinned, slot-holds-rows), then vacuum tenure.{name}"
            found.append(finding("dead-rows", text, next_, table=name, dead=dead, live=live, bytes=size))
    return found
