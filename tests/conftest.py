"""One PostgreSQL per run, one database per test: a copy of a migrated template, or one made like a fresh copy again."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tenure.embedded import Cluster
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tenure.postgres.test_databases import MARK
from tests import memory
from tests.clock import StoppedClock
from tests.harness import Harness
from tests.pooler import Pooler, pooling

# Runs that share a server each name a template of their own: a mutated migration must not be another run's schema.
_TEMPLATE = os.environ.get("TENURE_TEST_TEMPLATE", "tenure_template")

# Tests kill processes, not machines: what PostgreSQL was told is safe in the operating system's memory.
_SETTINGS = {"fsync": "off", "max_connections": "300", "shared_buffers": "256MB", "max_wal_size": "1GB"}

_CLUSTER_PLACE = pytest.StashKey[str | None]()

OwnCluster = Callable[..., AbstractContextManager[Cluster]]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run show that no test depends on another: PYTEST_ADDOPTS=--reverse ./dev test."""
    parser.addoption("--reverse", action="store_true", help="run the tests in the reversed order")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Reverse the order of the tests where that is asked for."""
    if config.getoption("--reverse"):
        items.reverse()


def pytest_configure(config: pytest.Config) -> None:
    """Choose where this run's PostgreSQL keeps its files: in memory if there is enough, else beside pytest's own."""
    if hasattr(config, "workerinput"):
        config.stash[_CLUSTER_PLACE] = config.workerinput["cluster_place"]
        return
    place = None if "TENURE_TEST_DATABASE_URL" in os.environ else memory.directory()
    if place:
        config.add_cleanup(lambda: shutil.rmtree(place, ignore_errors=True))
    config.stash[_CLUSTER_PLACE] = place


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process of xdist which place the run's PostgreSQL has."""
    node.workerinput["cluster_place"] = node.config.stash[_CLUSTER_PLACE]


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of this run's PostgreSQL: DATABASE_URL, or an embedded one that all test processes share."""
    if given := os.environ.get("TENURE_TEST_DATABASE_URL"):
        yield given
        return
    root = tmp_path_factory.getbasetemp()
    shared = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    place = request.config.stash[_CLUSTER_PLACE]
    with Cluster(Path(place or shared, "cluster"), settings=_SETTINGS) as cluster:
        yield cluster.dsn


@pytest.fixture(scope="session")
def own_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OwnCluster:
    """Start a PostgreSQL of a test's own, with these settings; its files are where those of this run's server are."""
    place = request.config.stash[_CLUSTER_PLACE]

    @contextmanager
    def begin(**settings: str) -> Iterator[Cluster]:
        with (
            tempfile.TemporaryDirectory(dir=place or tmp_path_factory.getbasetemp()) as made,
            Cluster(Path(made, "cluster"), settings={"fsync": "off", **settings}) as cluster,
        ):
            yield cluster

    return begin


@pytest.fixture(scope="session")
def template(server: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A migrated database that is only ever copied; the first test process makes it."""
    root = tmp_path_factory.getbasetemp()
    shared = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    with (shared / "template.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = Path(f"{lock.name}.done")
        if not done.exists():
            with psycopg.connect(server, autocommit=True) as connection:
                connection.execute(f"create database {_TEMPLATE}")
            migrate(make_conninfo(server, dbname=_TEMPLATE))
            done.touch()
    return _TEMPLATE


def new_name() -> str:
    """A name that no database ever had: whoever outlived a test does not find the next one's database."""
    return f"test_{uuid.uuid4().hex[:12]}"


@contextmanager
def own_database(server: str, options: str = "") -> Iterator[str]:
    """A database that is gone afterwards, whoever is still connected."""
    name = new_name()
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"create database {name} {options}".encode())
        connection.execute(f"comment on database {name} is '{MARK}'".encode())
        yield make_conninfo(server, dbname=name)
        connection.execute(f"drop database {name} with (force)".encode())


# A table, the catalog's own too, is as it was when it has as many rows and none is younger than `since`: nothing was
# added, changed or taken away. A table whose file is empty has no rows and need not be counted. Of pg_class the content
# is compared, because emptying a table gives it another file; of pg_statistic only what is known of tables that are not
# PostgreSQL's own, because autovacuum may come at any time to analyze those.
_QUESTION = """
with counted as (
    select format('select %%L, count(*), count(*) filter (where age(xmin) <= age(%%L::xid)) from %%s',
                  oid::regclass, %(since)s::text, oid::regclass)
           || case when oid = 'pg_class'::regclass then ' where oid < 16384' else '' end as question
    from pg_class
    where relkind = 'r' and not relisshared and oid <> 'pg_statistic'::regclass and pg_relation_size(oid) > 0
    union all
    select format('select %%L, last_value, 2 * log_cnt + is_called::int from %%s', oid::regclass, oid::regclass)
    from pg_class where relkind = 'S'
)
select string_agg(question, ' union all ') || $$
union all
select 'relations', count(*), hashtextextended(string_agg(
    (to_jsonb(c) - '{relfilenode,relfrozenxid,relminmxid}'::text[])::text, '' order by oid), 0)
from pg_class as c where oid >= 16384
union all
select 'files', count(*), 0 from pg_class where relkind = 'r' and not relisshared and pg_relation_size(oid) > 0
union all
select 'statistics', count(*), 0 from pg_statistic where starelid >= 16384
union all
select 'settings', (select count(*) from pg_db_role_setting where setdatabase = d.oid), hashtextextended(
    (to_jsonb(d) - '{oid,datname,datfrozenxid,datminmxid}'::text[])::text
    || coalesce(shobj_description(d.oid, 'pg_database'), ''), 0)
from pg_database as d where datname = current_database()
$$ from counted
"""

# The log refuses to be emptied unless triggers are off. The planner's numbers of an index are lost with its file: in a
# fresh copy they are those of a new index, one page without a row.
_EMPTY = """
set lock_timeout = '1s';
set session_replication_role = replica;
do $$
declare
    filled text := (select string_agg(oid::regclass::text, ', ')
                    from pg_class where oid = any('%s'::oid[]) and pg_relation_size(oid) > 0);
begin
    if filled is not null then
        execute 'truncate ' || filled;
        update pg_class set relpages = 1, reltuples = 0 where relkind = 'i' and relpages = 0 and oid >= 16384;
    end if;
end $$;
select pg_stat_reset();
"""


def value(connection: psycopg.Connection[Any], query: str, values: dict[str, Any] | None = None) -> Any:
    """The only value of a query."""
    (row,) = connection.execute(query.encode(), values).fetchall()
    return row[0]


@dataclass(frozen=True)
class Look:
    """How a fresh copy of the template looks, and how a database is made to look so again."""

    question: str
    answer: list[tuple[Any, ...]]
    emptying: str

    @classmethod
    def at(cls, connection: psycopg.Connection[Any]) -> Self:
        """Look at a fresh copy."""
        since = value(connection, "select pg_current_xact_id()::xid::text")
        question = value(connection, _QUESTION, {"since": since})
        empty = value(
            connection,
            "select array_agg(oid)::text from pg_class "
            "where relkind = 'r' and oid >= 16384 and pg_relation_size(oid) = 0",
        )
        sequences = value(
            connection,
            "select string_agg(format('select setval(''%I.%I'', %s, %L)', schemaname, sequencename, "
            "coalesce(last_value, start_value), last_value is not null), ';') from pg_sequences",
        )
        return cls(question, connection.execute(question.encode()).fetchall(), _EMPTY % empty + sequences)

    def restored(self, connection: psycopg.Connection[Any]) -> bool:
        """Empty what was empty; whether nothing else is different from a fresh copy."""
        connection.execute(self.emptying.encode())
        return connection.execute(self.question.encode()).fetchall() == self.answer


class Databases:
    """Lends a database to test after test, as long as it looks like a fresh copy again after each."""

    def __init__(self, server: str, template: str) -> None:
        self.server, self.template = server, template
        #: Seconds in which those may leave who are about to.
        self.leaving_s = 0.2
        self.spare: str | None = None
        self.look: Look | None = None

    @contextmanager
    def lend(self) -> Iterator[str]:
        """A migrated database that nobody else has."""
        with psycopg.connect(self.server, autocommit=True) as server:
            name, self.spare = self.spare or self.copy(server), None
            yield make_conninfo(self.server, dbname=name)
            self.take_back(server, name)

    def copy(self, server: psycopg.Connection[Any]) -> str:
        """Make a fresh copy; the first one is looked at."""
        name = new_name()
        server.execute(f"create database {name} template {self.template}".encode())
        server.execute(f"comment on database {name} is '{MARK}'".encode())
        if self.look is None:
            with self.connected(name) as connection:
                self.look = Look.at(connection)
            is_left(server, name, self.leaving_s)
        return name

    def take_back(self, server: psycopg.Connection[Any], name: str) -> None:
        """Keep the database for the next test if it can be made like a fresh copy, else drop it."""
        if self.look and not self.spare and is_left(server, name, self.leaving_s):
            # Whatever stops this is no test's business: the database is dropped.
            with suppress(psycopg.Error):
                renamed = new_name()
                server.execute(f"alter database {name} rename to {renamed}".encode())
                name = renamed
                with self.connected(name) as connection:
                    restored = self.look.restored(connection)
                if restored and is_left(server, name, self.leaving_s):
                    self.spare = name
                    return
        server.execute(f"drop database {name} with (force)".encode())

    def connected(self, name: str) -> psycopg.Connection[Any]:
        """A superuser's connection."""
        return psycopg.connect(self.server, dbname=name, autocommit=True)

    def close(self) -> None:
        """Drop what is left."""
        if self.spare:
            with psycopg.connect(self.server, autocommit=True) as server:
                server.execute(f"drop database {self.spare} with (force)".encode())


def is_left(server: psycopg.Connection[Any], name: str, within_s: float = 0.2) -> bool:
    """Whether nobody is connected to a database, after a moment for those who are about to leave."""
    connected = "select exists (select from pg_stat_activity where datname = %(name)s)"
    give_up = time.monotonic() + within_s
    while value(server, connected, {"name": name}):
        if time.monotonic() > give_up:
            return False
        time.sleep(0.001)
    return True


@pytest.fixture(scope="session")
def databases(server: str, template: str) -> Iterator[Databases]:
    """The migrated databases of this test process."""
    lender = Databases(server, template)
    yield lender
    lender.close()


@pytest.fixture(scope="session", autouse=True)
def pooler(request: pytest.FixtureRequest) -> Iterator[Pooler | None]:
    """The PgBouncer through which the engines of this run reach the databases, if it has one."""
    program = os.environ.get("TENURE_TEST_POOLER")
    with pooling(request.getfixturevalue("server"), program) if program else nullcontext() as started:
        yield started


@pytest.fixture
def dsn(request: pytest.FixtureRequest, databases: Databases, pooler: Pooler | None) -> Iterator[str]:
    """A migrated database of this test's own; with the mark `pristine` one that no test had before."""
    if request.node.get_closest_marker("pristine"):
        lent = own_database(databases.server, f"template {databases.template}")
    else:
        lent = databases.lend()
    with lent as made:
        yield made
        if pooler is not None:
            pooler.let_go(made)


@pytest.fixture
def empty_dsn(server: str) -> Iterator[str]:
    """A database of this test's own in which nothing was made yet."""
    with own_database(server) as made:
        yield made


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[Store]:
    """The kernel's verbs on this test's database."""
    async with Store.open(dsn) as opened:
        yield opened


@pytest.fixture
def db(dsn: str) -> Iterator[Harness]:
    """This test's own eyes and hands in its database, as superuser."""
    with Harness(dsn) as harness:
        yield harness


@pytest.fixture
def clock(db: Harness) -> StoppedClock:
    """A clock that stands still, for what connects by the clock's own address."""
    return StoppedClock(db)
