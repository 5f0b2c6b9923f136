"""The pytest plugin: a database for each test, on an embedded PostgreSQL that runs until the test run ends.

    def test_mail(tenure_database: str) -> None:
        ...                                   every App of this process and of its child processes uses it

TENURE_TEST_DATABASE_URL names another server: the address of a database on it, with a role that may create databases.
pytest loads this file in every run where Tenure is installed, so it imports nothing before a fixture is used.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tenure.postgres.test_databases import TestDatabases

#: Tests do not crash the machine: data in the operating system's memory is safe enough.
_SETTINGS = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "max_connections": "200"}


@pytest.fixture(scope="session")
def tenure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server of the test databases: TENURE_TEST_DATABASE_URL, else one embedded server for all test processes."""
    if url := os.environ.get("TENURE_TEST_DATABASE_URL"):
        yield url
        return
    from tenure.embedded import Cluster, find_binaries
    from tenure.errors import EmbeddedError

    try:
        find_binaries()
    except EmbeddedError as error:
        error.add_note("In tests TENURE_TEST_DATABASE_URL names the server to use, not DATABASE_URL.")
        raise
    base, is_worker = tmp_path_factory.getbasetemp(), "PYTEST_XDIST_WORKER" in os.environ
    cluster = Cluster((base.parent if is_worker else base) / "tenure-server", settings=_SETTINGS)
    with cluster:
        yield cluster.dsn
    if not is_worker:
        shutil.rmtree(cluster.directory, ignore_errors=True)


@pytest.fixture(scope="session")
def tenure_test_databases(tenure_server: str) -> Iterator[TestDatabases]:
    """The databases of this test process."""
    from tenure.postgres.test_databases import TestDatabases

    databases = TestDatabases(tenure_server)
    yield databases
    databases.close()


@pytest.fixture
def tenure_database(tenure_test_databases: TestDatabases, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an empty, migrated database for this test; every App uses it during the test."""
    from tenure.testing import use_database

    url = tenure_test_databases.lend()
    monkeypatch.setenv("DATABASE_URL", url)  # for processes that the test starts
    monkeypatch.delenv("TENURE_DISPATCHER_URL", raising=False)
    monkeypatch.delenv("TENURE_DIRECT_URL", raising=False)
    with use_database(url):
        yield url
    tenure_test_databases.take_back(url)
