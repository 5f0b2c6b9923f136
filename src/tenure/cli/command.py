"""What every command does: it opens its database, runs, prints its output as text or JSON, and sets the exit code.

The database is `--database-url`, else DATABASE_URL, else the embedded PostgreSQL in `.tenure/`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import typer

from tenure.cli.options import DatabaseUrl, Json
from tenure.cli.output import dump_json, note, table

if TYPE_CHECKING:
    from tenure.postgres.store import Store as Store
else:
    Store = Any  # commands load no database driver until they run

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Output:
    """The output of a command: the data for `--json`; without it, lines on stdout and notes on stderr."""

    data: Any
    lines: str | Iterable[str] = ()
    notes: Iterable[str] = ()
    #: Whether the command failed, and its exit code then.
    failed: bool = False
    exit_code: int = 1

    def print(self, in_json: bool) -> None:
        """Print the data as JSON, or else the lines and the notes; exits with its code when the command failed."""
        if in_json:
            print(dump_json(self.data), flush=True)
        else:
            text = self.lines if isinstance(self.lines, str) else "\n".join(self.lines)
            print(text, end="\n" if text else "", flush=True)
            note("\n".join(self.notes))
        if self.failed:
            raise typer.Exit(self.exit_code)


def table_output(
    data: Any, head: Sequence[str], rows: Iterable[Sequence[Any]], if_empty: str, notes: Iterable[str] = ()
) -> Output:
    """A list as a table under its column names; without rows, a note."""
    lines = list(table(head, rows))
    return Output(data, lines, notes) if len(lines) > 1 else Output(data, notes=[if_empty, *notes])


def requeued(kind: str, old_id: int, new_id: int) -> Output:
    """The answer to a requeue of a job or of a dead letter."""
    text = f"{kind} {old_id} runs again as job {new_id}\nNext: tenure jobs show {new_id}"
    return Output({"id": str(old_id), "requeued_as": str(new_id)}, text)


@contextmanager
def open_database(url: str | None, *, migrated: bool = True) -> Iterator[str]:
    """The address of the database; the embedded PostgreSQL runs, with its schema, until the block ends."""
    from tenure.settings import Settings

    settings = Settings.load()
    if address := url or settings.database_url:
        yield address
        return
    from tenure.embedded import acquire_default

    cluster = acquire_default(refused=settings.require_database)
    try:
        if migrated:
            from tenure.postgres.migrate import migrate

            migrate(cluster.dsn)
        yield cluster.dsn
    finally:
        cluster.release()


def call_store(
    url: str | None, call: Callable[[Store], Awaitable[T]], numbers: Mapping[str, Mapping[str, int]] | None = None
) -> T:
    """The result of this call on a store with one connection and this process's settings, or with these numbers."""
    import asyncio

    from tenure.postgres.store import Store
    from tenure.settings import Settings

    settings = Settings.load()

    async def run(dsn: str) -> T:
        options = {"max_bytes": settings.max_payload_bytes, "wake": settings.wakeups}
        async with Store.open(dsn, numbers=numbers or settings.numbers, connections=1, **options) as store:
            return await call(store)

    with open_database(url) as dsn:
        return asyncio.run(run(dsn))


_DATABASE_URL = Parameter("database_url", Parameter.KEYWORD_ONLY, default=None, annotation=DatabaseUrl)
_IN_JSON = Parameter("in_json", Parameter.KEYWORD_ONLY, default=False, annotation=Json)


def command(function: Callable[..., Any]) -> Callable[..., None]:
    """Make a command of a function that returns its `Output`: adds `--json`, prints the output, exits 1 on failure.

    An async function gets a store as its first argument, and the command gets `--database-url`. A function with a
    parameter `in_json` knows whether JSON is wanted; it prints by itself what must be printed while it runs.
    """
    uses_store = inspect.iscoroutinefunction(function)
    hints = get_type_hints(function, include_extras=True)
    own = inspect.signature(function).parameters
    parameters = [
        parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[name])
        for name, parameter in own.items()
        if name not in ("store", "in_json")
    ]
    parameters += [_DATABASE_URL, _IN_JSON] if uses_store else [_IN_JSON]

    @functools.wraps(function)
    def run(**options: Any) -> None:
        arguments = {name: value for name, value in options.items() if name in own}
        if uses_store:
            output = call_store(options["database_url"], lambda store: function(store, **arguments))
        else:
            output = function(**arguments)
        if output is not None:
            output.print(options["in_json"])

    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
