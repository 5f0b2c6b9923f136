"""Bring a database to this release: numbered migrations, registered contracts, their CHECK and their views.

    0001_….sql, 0002_….sql   each in its own transaction, checksummed, never changed once released
    tenure.contract          one row per name and version; another machine under the same version is refused
    CHECK (contract, state)  a constraint of a domain, replaced when a contract knows new states: locks no table
    tenure_NAME.*            the contract's views, replaced when their text changed

Only one `migrate` runs at a time (a session's advisory lock, so it needs a direct connection, not a pooler's). Each
lock on a table gives up after `lock_timeout`, so that it does not block the workers that wait behind it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import psycopg

from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import Contract
from tenure.contracts.stored_form import from_description
from tenure.contracts.versions import breaking_changes
from tenure.errors import ContractChanged, MigrationChanged, SchemaError, SchemaTooNew
from tenure.postgres.connect import STANDARD, plain_dsn, translate_connect_errors, translate_errors
from tenure.postgres.views import literal, quoted, schema, view_statements

LOCK_KEY = "tenure.migrate"
_LOCK_WAIT_MS = 120_000
_log = logging.getLogger("tenure")
#: A migration may read a whole table, so it has no time limit. A frozen process must not keep its locks.
_SESSION = {**STANDARD, "statement_timeout": "0", "idle_in_transaction_session_timeout": "60000"}
#: Table → the domain whose constraints are the conditions on its rows.
_DOMAINS = {"job": "valid_job", "job_done": "valid_finished_job", "dead_letter": "valid_letter"}
ROLES = ("tenure_owner", "tenure_app", "tenure_read")


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered SQL file."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """The checksum of the text, which must not change after release."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


@dataclass(slots=True)
class MigrationReport:
    """What a run of `migrate` changed."""

    applied: list[str] = field(default_factory=list)
    registered: list[str] = field(default_factory=list)
    renumbered: list[str] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)
    granted: list[str] = field(default_factory=list)
    ranges: int = 0


@cache
def migrations() -> tuple[Migration, ...]:
    """Return the migrations of this release, in order."""
    folder = files("tenure.postgres").joinpath("migrations")
    found = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return tuple(
        Migration(int(name[:4]), name.removesuffix(".sql"), folder.joinpath(name).read_text(encoding="utf-8"))
        for name in found
    )


def migrate(
    dsn: str, contracts: Mapping[str, Contract] = BUILT_IN, *, lock_timeout_ms: int = 5_000, grants: bool = False
) -> MigrationReport:
    """Bring the database to this release; refuses a database that a newer release migrated."""
    report = MigrationReport()
    with translate_connect_errors():
        opened = psycopg.connect(plain_dsn(dsn, "tenure migrate"), autocommit=True)
    with translate_errors(), opened as connection:
        for name, value in _SESSION.items():
            connection.execute("select set_config(%s, %s, false)", (name, value))
        _migrate(connection, contracts, report, lock_timeout_ms, grants=grants)
    return report


def _migrate(
    connection: psycopg.Connection[Any],
    contracts: Mapping[str, Contract],
    report: MigrationReport,
    lock_timeout_ms: int,
    *,
    grants: bool,
) -> None:
    with _exclusive(connection):
        connection.execute(f"set lock_timeout = {int(lock_timeout_ms)}")
        _set_owner_role(connection)
        connection.execute(_setup_sql("migration_table").encode())
        try:
            for migration in _pending(connection):
                with connection.transaction():
                    _execute(connection, [migration.sql, _insert_migration(migration)])
                report.applied.append(migration.name)
            new = [contract for contract in contracts.values() if _is_new(connection, contract)]
            # Before registration: a contract whose states the CHECK refuses could not be used.
            report.rebuilt.extend(_rebuild_checks(connection, new))
            for contract in new:
                # By parameters: with standard_conforming_strings off, a literal would lose its backslashes.
                insert = "insert into tenure.contract (name, version, digest, declaration) values (%s, %s, %s, %s)"
                connection.execute(insert, _contract_row(contract))
                report.registered.append(f"{contract.name} {contract.version}")
            report.renumbered.extend(_renumber(connection, contracts.values()))
            report.rebuilt.extend(_rebuild_views(connection, _newest_registered(connection)))
            row = connection.execute("select tenure.extend_ranges(4)").fetchone()
            report.ranges = row[0] if row else 0
            if grants:
                connection.execute("reset role")
                before, after = _grant_sql(_schemas(connection))
                connection.execute(before.encode())
                _transfer_ownership(connection)
                connection.execute(after.encode())
                report.granted.extend(ROLES)
        except psycopg.errors.LockNotAvailable as error:
            raise SchemaError(
                f"a table stayed locked for {lock_timeout_ms} ms; this step changed nothing. "
                "Next: look for long transactions in pg_stat_activity, and run tenure migrate again"
            ) from error


def render_sql(contracts: Mapping[str, Contract] = BUILT_IN, *, grants: bool = False) -> str:
    """Return the SQL of a whole set-up, for people who run it themselves; connects to nothing."""
    parts = [_setup_sql("migration_table").strip()]
    for migration in migrations():
        parts += [f"begin;\n{migration.sql.strip()}", f"{_insert_migration(migration)};\ncommit;"]
    for contract in contracts.values():
        row = ", ".join(map(literal, _contract_row(contract)))
        insert = "insert into tenure.contract (name, version, digest, declaration)"
        parts.append(f"{insert} values ({row}) on conflict do nothing;")
    checks = _checks(contract.describe() for contract in contracts.values())
    parts.append(";\n".join(_check_sql(checks)) + ";")
    for contract in contracts.values():
        parts.append(f"create schema if not exists {quoted(schema(contract))};")
        parts.extend(";\n".join(_view_sql(name, select)) + ";" for name, select in view_statements(contract))
    if grants:
        before, after = _grant_sql([schema(contract) for contract in contracts.values()])
        # A new database has only a few partitions: all in one transaction.
        not_owned = _setup_sql("not_owned").strip().removesuffix(";")
        owned = (
            f"do $$\ndeclare\n    item record;\nbegin\n    for item in\n{not_owned}\n    loop\n"
            "        execute item.change;\n    end loop;\nend\n$$;\n"
        )
        parts.append(before + owned + after)
    return "\n\n".join(parts) + "\n"


def _insert_migration(migration: Migration) -> str:
    values = f"{migration.number}, {literal(migration.name)}, {literal(migration.checksum)}"
    return f"insert into tenure.migration (number, name, checksum) values ({values})"


def _contract_row(contract: Contract) -> tuple[str, ...]:
    return contract.name, contract.version, contract.digest(), json.dumps(contract.describe())


@contextmanager
def _exclusive(connection: psycopg.Connection[Any]) -> Iterator[None]:
    connection.execute(f"set lock_timeout = {_LOCK_WAIT_MS}")
    try:
        connection.execute("select pg_advisory_lock(hashtextextended(%s, 0))", (LOCK_KEY,))
    except psycopg.errors.LockNotAvailable as error:
        raise SchemaError("another tenure migrate is running. Next: wait for it, or end it") from error
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute("select pg_advisory_unlock(hashtextextended(%s, 0))", (LOCK_KEY,))


def _pending(connection: psycopg.Connection[Any]) -> list[Migration]:
    applied = dict(connection.execute("select number, checksum from tenure.migration").fetchall())
    ours = {migration.number: migration for migration in migrations()}
    if newer := sorted(set(applied) - set(ours)):
        raise SchemaTooNew(
            f"the database has migration {newer[-1]}, this Tenure knows {max(ours)}. "
            "Next: upgrade tenure, then run it again"
        )
    for number, checksum in applied.items():
        if ours[number].checksum != checksum:
            raise MigrationChanged(
                f"migration {ours[number].name} was applied with another text. "
                "Next: install the release that made this database, or restore the file"
            )
    return [migration for number, migration in sorted(ours.items()) if number not in applied]


def _is_new(connection: psycopg.Connection[Any], contract: Contract) -> bool:
    """Whether this version is not registered yet; refuses a changed machine and a change that is not additive."""
    rows = connection.execute(
        "select version, digest, declaration from tenure.contract where name = %s order by registered_at",
        (contract.name,),
    ).fetchall()
    for version, digest, _ in rows:
        if version == contract.version:
            if digest != contract.digest():
                raise ContractChanged(
                    f"contract {contract.name} {version} is registered with another machine; "
                    "Next: give the changed contract a new version"
                )
            return False
    if rows:
        try:
            lost = list(breaking_changes(from_description(rows[-1][2]), contract))
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise ContractChanged(
                f"contract {contract.name} {rows[-1][0]} is registered in a form unknown to this Tenure ({error}). "
                "Next: upgrade tenure, then run it again"
            ) from error
        if lost:
            raise ContractChanged(
                f"contract {contract.name} {contract.version} is not an additive change of {rows[-1][0]}: "
                + "; ".join(lost)
                + ". Next: keep what was there, or give the contract a new name"
            )
    return True


def _renumber(connection: psycopg.Connection[Any], contracts: Iterable[Contract]) -> Iterable[str]:
    """Update the registered numbers of unchanged machines: the last registered ones are the defaults."""
    for contract in contracts:
        changed = connection.execute(
            "update tenure.contract set declaration = %s::json "
            "where (name, version) = (%s, %s) and declaration::jsonb <> %s::jsonb",
            (json.dumps(contract.describe()), contract.name, contract.version, json.dumps(contract.describe())),
        )
        if changed.rowcount:
            yield f"{contract.name} {contract.version}"


def _newest_registered(connection: psycopg.Connection[Any]) -> Iterable[Contract]:
    """Every registered contract in its newest version, also those that this run was not given."""
    rows = connection.execute("select name, declaration from tenure.contract order by registered_at").fetchall()
    for name, declared in dict(rows).items():
        try:
            yield from_description(declared)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            # Of a newer release, or of one that this release cannot read any more: its views stay as they are.
            _log.warning("the views of contract %s were left as they are: it cannot be read here (%s)", name, error)


def _rebuild_checks(connection: psycopg.Connection[Any], new: Iterable[Contract]) -> list[str]:
    """Rebuild the CHECKs of states and reasons for all registered versions, so that old rows stay valid."""
    registered = connection.execute("select declaration from tenure.contract order by name, version").fetchall()
    checks = _checks([*(declared for (declared,) in registered), *(contract.describe() for contract in new)])
    stale = [table for table, check in checks.items() if _comment(connection, table) != _fingerprint(check)]
    if stale:
        with connection.transaction():
            _execute(connection, _check_sql({table: checks[table] for table in stale}))
    _drop_table_checks(connection)
    return [f"CHECK on tenure.{table}" for table in stale]


def _drop_table_checks(connection: psycopg.Connection[Any]) -> None:
    """Drop the CHECKs of a release before migration 13, now that the domains have the same conditions."""
    for table in _DOMAINS:
        name = f"{table}_state"
        found = connection.execute(
            "select from pg_constraint where conname = %s and conrelid = %s::regclass", (name, f"tenure.{table}")
        ).fetchone()
        if found is not None:
            _execute(connection, [f"alter table tenure.{table} drop constraint {name}"])


def _comment(connection: psycopg.Connection[Any], table: str) -> str | None:
    row = connection.execute(
        "select obj_description(oid, 'pg_constraint') from pg_constraint where conname = %s and contypid = %s::regtype",
        (f"{table}_state", f"tenure.{_DOMAINS[table]}"),
    ).fetchone()
    return row[0] if row else None


def _execute(connection: psycopg.Connection[Any], statements: Iterable[str]) -> None:
    for statement in statements:
        connection.execute(statement.encode())


def _checks(declarations: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return table → the condition on its rows: known states, a job's first state, declared reasons."""
    words: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for declared in declarations:
        known = words[declared["name"]]
        known["state"] |= set(declared["states"])
        # As `Contract.initial_role`; a declaration of a newer release may have a form that cannot be read here.
        roles = declared["states"][declared["initial"]]
        known["waiting" if "waiting" in roles and "ready" not in roles else "ready"].add(declared["initial"])
        known["reason_code"] |= set(declared["dead_letters"]["reasons"])
        known["stage"] |= set(declared["dead_letters"]["stages"])
    live, done, letters = {}, {}, {}
    for name, known in words.items():
        done[name] = _in("state", known["state"])
        born = [
            f"{_in('role', [role])} and {_in('state', known[role])}" for role in ("ready", "waiting") if known[role]
        ]
        # Every hop has a log row, so a job without one is in its initial state.
        live[name] = f"{done[name]} and ((value).seq > 0 or {' or '.join(born)})"
        letters[name] = " and ".join(_in(fact, known[fact]) for fact in ("reason_code", "stage") if known[fact])
    return {
        # A due time that clients cannot read would fail every claim that meets it.
        "job": f"{_by_contract(live, otherwise='false')} "
        "and (value).due_at >= '0001-01-02 00:00+00' and (value).due_at < '9999-12-31 00:00+00'",
        "job_done": _by_contract(done, otherwise="false"),
        "dead_letter": _by_contract(letters, otherwise="true"),
    }


def _by_contract(conditions: Mapping[str, str], *, otherwise: str) -> str:
    """Return a condition that depends on the contract; a contract without one has the same as unknown contracts."""
    whens = " ".join(f"when {literal(name)} then {found}" for name, found in sorted(conditions.items()) if found)
    return f"case (value).contract {whens} else {otherwise} end" if whens else otherwise


def _in(fact: str, values: Iterable[str]) -> str:
    return f"(value).{fact} in ({', '.join(map(literal, sorted(values)))})"


def _set_owner_role(connection: psycopg.Connection[Any]) -> None:
    """Act as the owner's role if there is one, so that it owns new objects too."""
    owner = connection.execute(
        "select current_database(), has_database_privilege(nspowner, current_database(), 'create') from pg_namespace "
        "where nspname = 'tenure' and nspowner = to_regrole('tenure_owner') and pg_has_role(nspowner, 'usage')"
    ).fetchone()
    if owner is None:
        return
    database, may_create = owner
    if not may_create:  # a right on the database, which a restored database lacks
        connection.execute(f"grant create on database {quoted(database)} to tenure_owner".encode())
    connection.execute("set role tenure_owner")


def _check_sql(checks: Mapping[str, str]) -> list[str]:
    """Return the statements that replace the constraints of the domains; rows that are stored are not read."""
    statements = []
    for table, known in checks.items():
        domain, name = f"tenure.{_DOMAINS[table]}", f"{table}_state"
        statements += [
            f"alter domain {domain} drop constraint if exists {name}",
            f"alter domain {domain} add constraint {name} check ({known}) not valid",
            f"comment on constraint {name} on domain {domain} is {literal(_fingerprint(known))}",
        ]
    return statements


def _rebuild_views(connection: psycopg.Connection[Any], contracts: Iterable[Contract]) -> Iterable[str]:
    for contract in contracts:
        connection.execute(f"create schema if not exists {quoted(schema(contract))}".encode())
        for name, select in view_statements(contract):
            row = connection.execute("select obj_description(to_regclass(%s), 'pg_class')", (name,)).fetchone()
            if row and row[0] == _fingerprint(select):
                continue
            try:
                with connection.transaction():
                    _execute(connection, _view_sql(name, select))
            except psycopg.errors.DependentObjectsStillExist as error:
                raise SchemaError(
                    f"view {name} must change, but another object depends on it: {error.diag.message_detail}. "
                    "Next: drop that object, run tenure migrate again, and create it again"
                ) from error
            yield f"view {name}".replace('"', "")


def _view_sql(name: str, select: str) -> list[str]:
    return [
        f"drop view if exists {name}",
        f"create view {name} with (security_invoker = true) as\n{select}",
        f"comment on view {name} is {literal(_fingerprint(select))}",
    ]


def _fingerprint(text: str) -> str:
    return "tenure:" + hashlib.sha256(text.encode()).hexdigest()[:16]


def _schemas(connection: psycopg.Connection[Any]) -> list[str]:
    names = connection.execute("select distinct name from tenure.contract order by name").fetchall()
    return [f"tenure_{name}" for (name,) in names]


def _transfer_ownership(connection: psycopg.Connection[Any]) -> None:
    """Make the owner's role own everything; partitions one by one, because each takes a dozen locks until commit."""
    found = connection.execute(_setup_sql("not_owned").encode()).fetchall()
    with connection.transaction():
        _execute(connection, [change for change, is_partition in found if not is_partition])
    _execute(connection, [change for change, is_partition in found if is_partition])


def _grant_sql(schemas: Iterable[str]) -> tuple[str, str]:
    """Return the SQL that runs before, and after, all objects belong to the owner's role."""
    reads = "\n".join(
        f"grant usage on schema {quoted(name)} to tenure_app, tenure_read;\n"
        f"grant select on all tables in schema {quoted(name)} to tenure_app, tenure_read;\n"
        # A view that a later release replaces keeps its readers.
        f"alter default privileges for role tenure_owner in schema {quoted(name)} "
        "grant select on tables to tenure_app, tenure_read;"
        for name in ["tenure", *schemas]
    )
    return f"{_setup_sql('roles')}{reads}\n{_setup_sql('grants_owner')}", _setup_sql("grants_app")


def _setup_sql(name: str) -> str:
    return files("tenure.postgres").joinpath("setup", f"{name}.sql").read_text(encoding="utf-8")
