"""Tenure's schema in a database of the settings: `manage.py migrate` updates it, a check reports it missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.core import checks
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenure.errors import SchemaMissing, TenureError
from tenure.integrations.django.connection import database_url, open_connection
from tenure.integrations.django.project import backends
from tenure.integrations.django.result import read_job
from tenure.postgres.migrate import migrate
from tenure.postgres.registry import Registry
from tenure.settings import Settings


def migrate_schema(*, using: str, verbosity: int = 1, stdout: Any = None, **_: Any) -> None:
    """Create or upgrade the schema in a database that was just migrated, if a backend of the settings uses it."""
    wanted = [backend for backend in backends() if backend.tenure_options.database == using]
    if not any(backend.tenure_options.migrate for backend in wanted):
        return
    report = migrate(_direct_url(using))
    if verbosity >= 1 and (report.applied or report.registered):
        said = f"  Tenure: applied {len(report.applied)} migrations, registered {len(report.registered)} contracts"
        (print if stdout is None else stdout.write)(said)


def check_schema(*, databases: Sequence[str] | None = None, **_: Any) -> Iterable[checks.CheckMessage]:
    """Warn where a backend's database lacks the schema; run by `manage.py check --database ALIAS`."""
    for alias in sorted({backend.tenure_options.database for backend in backends()} & set(databases or ())):
        try:
            read_job(open_connection(alias), Registry(), 1)
        except SchemaMissing:
            yield checks.Warning(
                f"DATABASES[{alias!r}] lacks Tenure's schema, so nothing can be enqueued.",
                hint=f"manage.py migrate --database {alias}", id="tenure.W002",
            )  # fmt: skip
        except TenureError as error:
            yield checks.Warning(f"DATABASES[{alias!r}]: {error}", id="tenure.W003")


def _direct_url(alias: str) -> str:
    """The address past a pooler, where TENURE_DIRECT_URL gives one, of the database that Django has migrated."""
    url, direct = database_url(alias), Settings.load().direct_url
    return make_conninfo(direct, dbname=conninfo_to_dict(url)["dbname"]) if direct else url
