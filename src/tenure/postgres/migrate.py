"""Bring a database to this release: numbered migrations, registered contracts, their CHECK and their views.

    0001_….sql, 0002_….sql   each in its own transaction, checksummed, never changed once released
    tenure.contract          one row per name and version; another machine under the same version is refused
    CHECK (contract, state)  rebuilt when a contract knows new states: NOT VALID first, then VALIDATE
    tenure_NAME.*            the contract's views, replaced when their text changed

One `migrate` runs at a time (a session's advisory lock, so it wants a direct connection, not a pooler's). Every lock it
takes on a table gives up after `lock_timeout` instead of stopping the workers that wait behind it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import psycopg

from tenure.contract import Contract
from tenure.contracts import BUILT_IN
from tenure.errors import ContractChanged, MigrationChanged, SchemaError, SchemaTooNew
from tenure.postgres.connect import checked, connecting, our_errors
from tenure.postgres.views import literal, quoted, schema, view_statements
from tenure.versions import differences, from_description

LOCK_KEY = "tenure.migrate"
_PATIENCE_MS = 120_000
ROLES = ("tenure_owner", "tenure_app", "tenure_read")

_BOOK = """
create schema if not exists tenure;
create table if not exists tenure.migration (
    number     integer primary key,
    name       text not null,
    checksum   text not null,
    applied_at timestamptz not null default clock_timestamp()
)
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered SQL file."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """What must not change once it is released."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


@dataclass(slots=True)
class Report:
    """What a run of `migrate` did."""

    applied: list[str] = field(default_factory=list)
    registered: list[str] = field(default_factory=list)
    renumbered: list[str] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)
    granted: list[str] = field(default_factory=list)
    ranges: int = 0


@cache
def migrations() -> tuple[Migration, ...]:
    """The migrations of this release, in order."""
    folder = files("tenure.postgres").joinpath("migrations")
    found = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return tuple(
        Migration(int(name[:4]), name.removesuffix(".sql"), folder.joinpath(name).read_text(encoding="utf-8"))
        for name in found
    )


def migrate(
    dsn: str,
    contracts: Mapping[str, Contract] = BUILT_IN,
    *,
    lock_timeout_ms: int = 5_000,
    grants: bool = False,
) -> Report:
    """Bring the database to this release; refuses one that a newer release has migrated."""
    report = Report()
    checked(dsn)
    with connecting():
        opened = psycopg.connect(dsn, autocommit=True)
    with our_errors(), opened as connection, _alone(connection):
        connection.execute(f"set lock_timeout = {int(lock_timeout_ms)}")
        _become_the_owner(connection)
        connection.execute(_BOOK)
        try:
            for migration in _pending(connection):
                with connection.transaction():
                    connection.execute(migration.sql.encode())
                    connection.execute(
                        "insert into tenure.migration (number, name, checksum) values (%s, %s, %s)",
                        (migration.number, migration.name, migration.checksum),
                    )
                report.applied.append(migration.name)
            new = [contract for contract in contracts.values() if _is_new(connection, contract)]
            # Before registering: a contract whose states the CHECK refuses could not be used.
            report.rebuilt.extend(_rebuild_checks(connection, new))
            for contract in new:
                connection.execute(
                    "insert into tenure.contract (name, version, digest, declaration) values (%s, %s, %s, %s)",
                    (contract.name, contract.version, contract.digest(), json.dumps(contract.describe())),
                )
                report.registered.append(f"{contract.name} {contract.version}")
            report.renumbered.extend(_renumber(connection, contracts.values()))
            report.rebuilt.extend(_rebuild_views(connection, contracts.values()))
            row = connection.execute("select tenure.extend_ranges(4)").fetchone()
            report.ranges = row[0] if row else 0
            if grants:
                connection.execute("reset role")
                connection.execute(grant_sql(_schemas(connection)).encode())
                report.granted.extend(ROLES)
        except psycopg.errors.LockNotAvailable as error:
            raise SchemaError(
                f"a table stayed locked for {lock_timeout_ms} ms; nothing of this step was changed. "
                "Next: look for long transactions in pg_stat_activity, and run tenure migrate again"
            ) from error
    return report


def printed(contracts: Mapping[str, Contract] = BUILT_IN, *, grants: bool = False) -> str:
    """The SQL of a whole set-up, for people who run it themselves; connects to nothing."""
    parts = [_BOOK.strip() + ";"]
    for migration in migrations():
        parts.append(f"begin;\n{migration.sql.strip()}")
        parts.append(
            "insert into tenure.migration (number, name, checksum) values "
            f"({migration.number}, {literal(migration.name)}, {literal(migration.checksum)});\ncommit;"
        )
    for contract in contracts.values():
        parts.append(
            "insert into tenure.contract (name, version, digest, declaration) values "
            f"({literal(contract.name)}, {literal(contract.version)}, {literal(contract.digest())}, "
            f"{literal(json.dumps(contract.describe()))}) on conflict do nothing;"
        )
    checks = _checks(contract.describe() for contract in contracts.values())
    parts.extend(";\n".join(step) + ";" for step in _check_sql(checks))
    for contract in contracts.values():
        parts.append(f"create schema if not exists {quoted(schema(contract))};")
        parts.extend(";\n".join(_view_sql(name, select)) + ";" for name, select in view_statements(contract))
    if grants:
        parts.append(grant_sql([schema(contract) for contract in contracts.values()]))
    return "\n\n".join(parts) + "\n"


@contextmanager
def _alone(connection: psycopg.Connection[Any]) -> Iterator[None]:
    connection.execute(f"set lock_timeout = {_PATIENCE_MS}")
    try:
        connection.execute("select pg_advisory_lock(hashtextextended(%s, 0))", (LOCK_KEY,))
    except psycopg.errors.LockNotAvailable as error:
        raise SchemaError("another tenure migrate is running and does not end. Next: end it, or wait for it") from error
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
                f"migration {ours[number].name} was applied with another text; "
                "Next: install the release that made this database, or restore the file"
            )
    return [migration for number, migration in sorted(ours.items()) if number not in applied]


def _is_new(connection: psycopg.Connection[Any], contract: Contract) -> bool:
    """Whether this version is yet to be registered; refuses a changed machine and a change that takes away."""
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
            lost = list(differences(from_description(rows[-1][2]), contract))
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise ContractChanged(
                f"contract {contract.name} {rows[-1][0]} is registered in words unknown to this Tenure ({error}). "
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
    """The same machine with other numbers: those of the declaration that was registered last are the defaults."""
    for contract in contracts:
        changed = connection.execute(
            "update tenure.contract set declaration = %s::json "
            "where (name, version) = (%s, %s) and declaration::jsonb <> %s::jsonb",
            (json.dumps(contract.describe()), contract.name, contract.version, json.dumps(contract.describe())),
        )
        if changed.rowcount:
            yield f"{contract.name} {contract.version}"


def _rebuild_checks(connection: psycopg.Connection[Any], new: Iterable[Contract]) -> list[str]:
    """What a row's contract knows, as CHECKs: every version's words, so that old rows stay valid."""
    registered = connection.execute("select declaration from tenure.contract order by name, version").fetchall()
    checks = _checks([*(declared for (declared,) in registered), *(contract.describe() for contract in new)])
    stale = [table for table, check in checks.items() if _comment(connection, table) != _fingerprint(check)]
    if stale:
        add, validate, put_in_place = _check_sql(checks)
        # All tables or none: what one locked table stops has changed nothing on the other.
        with connection.transaction():
            _execute(connection, add)
        _execute(connection, validate)
        with connection.transaction():
            _execute(connection, put_in_place)
    return [f"CHECK on tenure.{table}" for table in stale]


def _comment(connection: psycopg.Connection[Any], table: str) -> str | None:
    row = connection.execute(
        "select obj_description(oid, 'pg_constraint') from pg_constraint "
        "where conname = %s and conrelid = %s::regclass",
        (f"{table}_state", f"tenure.{table}"),
    ).fetchone()
    return row[0] if row else None


def _execute(connection: psycopg.Connection[Any], statements: Iterable[str]) -> None:
    for statement in statements:
        connection.execute(statement.encode())


def _checks(declarations: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """table → what its rows must satisfy: known states; jobs that begin where their contract does; declared reasons."""
    words: dict[str, dict[str, set[str]]] = {}
    for declared in declarations:
        known = words.setdefault(
            declared["name"], {"states": set(), "initial": set(), "reasons": set(), "stages": set()}
        )
        known["states"] |= set(declared["states"])
        known["initial"].add(declared["initial"])
        known["reasons"] |= set(declared["dead_letters"]["reasons"])
        known["stages"] |= set(declared["dead_letters"]["stages"])
    names = sorted(words)
    states = " or ".join(f"(contract = {literal(name)} and {_in('state', words[name]['states'])})" for name in names)
    # Every hop has its log row, so a job without one stands where it was made.
    born = " or ".join(f"(contract = {literal(name)} and {_in('state', words[name]['initial'])})" for name in names)
    limited = [
        f"(contract <> {literal(name)} or {_in(column, words[name][kind])})"
        for name in names
        for column, kind in (("reason_code", "reasons"), ("stage", "stages"))
        if words[name][kind]
    ]
    return {
        "job": f"({states}) and (seq > 0 or role = 'ready' and ({born}))",
        "job_done": states,
        "dead_letter": " and ".join(limited) or "true",
    }


def _in(column: str, values: Iterable[str]) -> str:
    return f"{column} in ({', '.join(map(literal, sorted(values)))})"


def _become_the_owner(connection: psycopg.Connection[Any]) -> None:
    """What a later release makes belongs to whom the rest belongs to: the owner's role, where there is one."""
    owner = connection.execute(
        "select current_database(), has_database_privilege(nspowner, current_database(), 'create') from pg_namespace "
        "where nspname = 'tenure' and nspowner = to_regrole('tenure_owner') and pg_has_role(nspowner, 'usage')"
    ).fetchone()
    if owner is None:
        return
    database, may_create = owner
    if not may_create:  # a right of the database, which a restored one has lost
        connection.execute(f"grant create on database {quoted(database)} to tenure_owner".encode())
    connection.execute("set role tenure_owner")


def _check_sql(checks: Mapping[str, str]) -> tuple[list[str], list[str], list[str]]:
    """Three steps: add without looking (a moment's lock), look (writers go on), put in the old one's place."""
    add, validate, put_in_place = [], [], []
    for table, known in checks.items():
        alter = f"alter table tenure.{table}"
        add += [
            f"{alter} drop constraint if exists {table}_state_new",
            f"{alter} add constraint {table}_state_new check ({known}) not valid",
        ]
        validate.append(f"{alter} validate constraint {table}_state_new")
        put_in_place += [
            f"{alter} drop constraint if exists {table}_state",
            f"{alter} rename constraint {table}_state_new to {table}_state",
            f"comment on constraint {table}_state on tenure.{table} is {literal(_fingerprint(known))}",
        ]
    return add, validate, put_in_place


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
                    f"view {name} must change, but something of yours is built on it: {error.diag.message_detail}. "
                    "Next: drop that, run tenure migrate again, and make it anew"
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


#: Everything of ours is the owner's from now on, who may also make what a later release brings.
_OWNED = """do $$
declare
    item record;
begin
    if not has_database_privilege('tenure_owner', current_database(), 'create') then
        execute format('grant create on database %I to tenure_owner', current_database());
    end if;
    -- Who made the role administers it, which is not yet the right to act as it.
    if current_user <> 'tenure_owner' and not pg_has_role(current_user, 'tenure_owner', 'usage') then
        execute format('grant tenure_owner to %I', current_user);
    end if;
    for item in
        select format('schema %I', nspname) as what from pg_namespace where nspname ~ '^tenure(_|$)'
        union all
        select format('%s %s', case relkind when 'v' then 'view' else 'table' end, pg_class.oid::regclass)
        from pg_class join pg_namespace on pg_namespace.oid = relnamespace
        where nspname ~ '^tenure(_|$)' and relkind in ('r', 'p', 'v')
        union all
        select format('function %s', pg_proc.oid::regprocedure)
        from pg_proc join pg_namespace on pg_namespace.oid = pronamespace
        where nspname = 'tenure'
    loop
        execute format('alter %s owner to tenure_owner', item.what);
    end loop;
end
$$;"""


def grant_sql(schemas: Iterable[str]) -> str:
    """Three roles: the owner migrates, the app works, the reader looks."""
    roles = "\n".join(
        f"do $$ begin if to_regrole('{role}') is null then create role {role} nologin; end if; "
        "exception when duplicate_object or unique_violation then null; end $$;"
        for role in ROLES
    )
    reads = "\n".join(
        f"grant usage on schema {quoted(name)} to tenure_app, tenure_read;\n"
        f"grant select on all tables in schema {quoted(name)} to tenure_app, tenure_read;\n"
        # A view that a later release replaces keeps its readers.
        f"alter default privileges for role tenure_owner in schema {quoted(name)} "
        "grant select on tables to tenure_app, tenure_read;"
        for name in ["tenure", *schemas]
    )
    return f"""{roles}
{reads}
revoke select on tenure.claim, tenure.key, tenure.api_key from tenure_read;
grant select (id, name, hint, scopes, tenant_id, person, created_at, created_by, expires_at, revoked_at, revoked_by)
    on tenure.api_key to tenure_read;
{_OWNED}
grant insert, update, delete on tenure.job, tenure.claim, tenure.key, tenure.outbox to tenure_app;
grant insert on tenure.job_done, tenure.event, tenure.effect, tenure.rerun to tenure_app;
grant update (facts) on tenure.event to tenure_app;
grant update (compensated_at) on tenure.effect to tenure_app;
grant insert, update (revoked_at, revoked_by) on tenure.api_key to tenure_app;
grant insert, update (routed_at) on tenure.emitted to tenure_app;
grant update (publishing) on tenure.installation to tenure_app;
grant insert, update on tenure.dead_letter, tenure.job_type, tenure.queue to tenure_app;
grant usage on all sequences in schema tenure to tenure_app;
grant execute on function tenure.extend_ranges(integer) to tenure_app;
"""
