"""`tenure types`: list, show and reset the options that job types have in the database."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.command import Output, Store, command, table_output
from tenure.cli.options import Json, OnlyContract
from tenure.cli.output import card, timestamp
from tenure.errors import BadInput

if TYPE_CHECKING:
    from tenure.postgres.job_types import StoredJobType

_Type = Annotated[str, typer.Argument(metavar="TYPE", help="The job type.")]
_HEAD = ("type", "contract", "options", "application", "declared by", "declared (UTC)")


@command
async def list_(store: Store, contract: OnlyContract = None) -> Output:
    """List the types that have options in the database: the options, and who declared them when."""
    entries = await store.types.entries(contract)
    if_empty = "no job type has options in the database: their contracts' numbers hold"
    return table_output({"types": list(map(_fields, entries))}, _HEAD, map(_row, entries), if_empty)


@command
async def show(store: Store, type_: _Type, contract: OnlyContract = None, in_json: Json = False) -> Output:
    """Show a type: its stored options, who declared them, and the options that each live worker declares."""
    entries = [entry for entry in await store.types.entries(contract) if entry.type == type_]
    workers = await store.types.declarations(type_, contract)
    if not entries and not workers and not in_json:
        raise BadInput(
            f"type {type_!r} has no options in the database, and no live worker knows it. Next: tenure types list"
        )
    rows: list[tuple[str, str | None]] = []
    for entry in entries:
        declared = f"application {entry.application or 'unknown'}, by {entry.declared_by or 'unknown'}"
        text = f"{_text(_options(entry))} — {declared}, {timestamp(entry.declared_at)} UTC"
        rows.append((f"stored ({entry.options.contract})", text))
    if not entries:
        rows.append(("stored", "none: who declares nothing takes the contract's numbers"))
    for worker in workers:
        declared = "; ".join(f"{name}: {_text(options)}" for name, options in worker.options.items())
        text = f"{declared or 'its contract’s numbers'} (application {worker.application})"
        rows.append((f"worker {worker.worker}", text))
    live = [worker._asdict() for worker in workers]
    data = {"type": type_, "stored": list(map(_fields, entries)), "workers": live}
    return Output(data, card(f"type {type_}", rows, [f"tenure types reset {type_}"] if entries else []))


@command
async def reset(store: Store, type_: _Type, contract: OnlyContract = None) -> Output:
    """Remove a type's stored options; they come back when a process that declares them starts."""
    removed = await store.types.reset(type_, contract)
    return Output(
        {"reset": [{"contract": name, "type": found} for name, found in removed]},
        [f"type {found}: contract {name}'s own numbers hold for callers that declare none" for name, found in removed],
        [] if removed else [f"type {type_} has no options in the database"],
    )


def _options(entry: StoredJobType) -> dict[str, Any]:
    """The options that differ from the contract's numbers."""
    options = asdict(entry.options)
    del options["type"], options["contract"]
    return {name: value for name, value in options.items() if value is not None and (name, value) != ("renews", True)}


def _text(options: dict[str, Any]) -> str:
    texts = [
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in options.items()
        if (name, value) != ("renews", True)
    ]
    return ", ".join(texts) or "none"


def _row(entry: StoredJobType) -> tuple[Any, ...]:
    return (
        entry.type, entry.options.contract, _text(_options(entry)), entry.application or "unknown",
        entry.declared_by or "unknown", entry.declared_at,
    )  # fmt: skip


def _fields(entry: StoredJobType) -> dict[str, Any]:
    return {
        "type": entry.type, "contract": entry.options.contract, "options": _options(entry),
        "application": entry.application, "declared_by": entry.declared_by, "declared_at": entry.declared_at,
    }  # fmt: skip
