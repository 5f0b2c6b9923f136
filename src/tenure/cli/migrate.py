"""`tenure migrate`: bring a database to this release."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tenure.cli.command import Output, command, open_database
from tenure.settings import Settings

_Apps = Annotated[
    list[str] | None, typer.Option("--app", help="Also the contracts of this application, as module:app; repeatable.")
]
_Contracts = Annotated[
    list[str] | None, typer.Option("--contract", help="Also this contract, as module:NAME; repeatable.")
]
_DirectUrl = Annotated[str | None, typer.Option("--database-url", help="Default: TENURE_DIRECT_URL, DATABASE_URL.")]


@command
def migrate(
    print_sql: Annotated[bool, typer.Option("--print", help="Print the whole SQL; connect nowhere.")] = False,
    grants: Annotated[bool, typer.Option("--grants", help="Also create roles: tenure_owner, _app, _read.")] = False,
    lock_timeout: Annotated[int, typer.Option(min=1, help="Milliseconds to wait for a locked table.")] = 5_000,
    app: _Apps = None,
    contract: _Contracts = None,
    database_url: _DirectUrl = None,
) -> Output | None:
    """Create or upgrade the schema, register the contracts, build their views. Repeatable, also while workers run."""
    from tenure.cli.contracts.find import import_contracts
    from tenure.client.own_contracts import contracts_by_name
    from tenure.contracts import BUILT_IN
    from tenure.postgres import migrate as migrations

    own = [one for target in (*(app or ()), *(contract or ())) for one in import_contracts(target)]
    # The same contract may be named twice, as by two applications that share it.
    contracts = {**BUILT_IN, **contracts_by_name({id(one): one for one in own}.values())}
    if print_sql:
        print(migrations.render_sql(contracts, grants=grants), end="")
        return None
    with open_database(database_url or Settings.load().direct_url, migrated=False) as dsn:
        report = migrations.migrate(dsn, contracts, lock_timeout_ms=lock_timeout, grants=grants)
    done = [
        *(f"applied {name}" for name in report.applied),
        *(f"registered contract {name}" for name in report.registered),
        *(f"took over the numbers of contract {name}" for name in report.renumbered),
        *(f"rebuilt {name}" for name in report.rebuilt),
        *(f"granted to role {name}" for name in report.granted),
        *([f"made {report.ranges} id ranges"] if report.ranges else []),
    ]
    return Output(asdict(report), done or "nothing to do: the database is at this release")
