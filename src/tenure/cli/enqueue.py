"""`tenure enqueue`: make one job."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tenure.cli.database import with_store
from tenure.cli.given import user
from tenure.cli.shown import as_json
from tenure.errors import BadInput

if TYPE_CHECKING:
    from tenure.job import Job
    from tenure.postgres.store import Store

_Type = typer.Argument(metavar="TYPE", help="The task's name.")
_Payload = typer.Option("{}", "--payload", help="The arguments as JSON, @FILE, or - for what comes on stdin.")
_Contract = typer.Option("standard", "--contract", help="Under which contract.")
_Queue = typer.Option("default", "--queue", help="In which queue.")
_Tenant = typer.Option("default", "--tenant", help="For which tenant.")
_Key = typer.Option(None, "--key", help="Makes a repeat safe: the same key and job again make nothing.")
_Delay = typer.Option(None, "--delay", help="Not before so long from now: 1.5 (seconds), 500ms, 30s, 5m, 2h, 7d.")
_Priority = typer.Option(5, "--priority", min=0, max=9, help="0 goes first, 9 last.")
_Limit = typer.Option(None, "--max-attempts", help="The limit, in the contract's own sense; default its own.")
_Database = typer.Option(None, "--database-url", help="Which database; default DATABASE_URL, else the embedded one.")
_Json = typer.Option(False, "--json", help="The same, as JSON.")

_SPAN = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*(ms|s|m|h|d)?\Z")
_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("enqueue")(enqueue)


def enqueue(
    type_: str = _Type,
    payload: str = _Payload,
    contract: str = _Contract,
    queue: str = _Queue,
    tenant: str = _Tenant,
    key: str | None = _Key,
    delay: str | None = _Delay,
    priority: int = _Priority,
    max_attempts: int | None = _Limit,
    database_url: str | None = _Database,
    in_json: bool = _Json,
) -> None:
    """Make a job, and say its id, its state and where to look next."""
    from tenure.job import NewJob

    new = NewJob(
        type_, _document(payload), contract, queue=queue, tenant_id=tenant, key=key, priority=priority,
        delay_ms=None if delay is None else _milliseconds(delay), max_attempts=max_attempts,
    )  # fmt: skip

    async def make(store: Store) -> tuple[Job, bool]:
        made = await store.enqueue(new, created_by=user())
        (job,) = await store.jobs([made.job_id])
        return job, made.made

    job, made = with_store(database_url, make)
    if in_json:
        named = {"contract": job.contract, "state": job.state, "queue": job.queue, "type": job.type}
        print(as_json({"id": str(job.id), **named, "tenant_id": job.tenant_id, "due_at": job.due_at, "made": made}))
        return
    how = "is" if made else "was made before with this key; it is"
    print(f"job {job.id} {how} {job.state} in queue {job.queue}\nNext: tenure jobs show {job.id}")


def _document(given: str) -> Any:
    """The payload, from where it was said to be; refuses what is no JSON, and says where it is not."""
    where, text = "--payload", given
    if given == "-":
        where, text = "stdin", _text("stdin", sys.stdin.buffer.read())
    elif given.startswith("@"):
        where = given[1:]
        try:
            text = _text(where, Path(where).read_bytes())
        except OSError as error:
            raise BadInput(f"the file {where!r} cannot be read: {error.strerror or error}. Next: check it") from None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = text.splitlines()[error.lineno - 1 : error.lineno] or [""]
        near = line[0][max(0, error.colno - 11) : error.colno + 9]
        raise BadInput(
            f"{where} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}, near {near!r}. "
            'Next: give an object like \'{"to": "ada"}\', in quotes'
        ) from None
    except (RecursionError, ValueError) as error:  # nested too deep, or a number with too many digits
        raise BadInput(f"{where} is not JSON that can be stored: {error}") from None


def _text(where: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{where} is not UTF-8 at byte {error.start}. Next: convert it") from None


def _milliseconds(text: str) -> int:
    found = _SPAN.match(text.strip())
    if found is None:
        raise BadInput(f"--delay is a number of seconds, or like 500ms, 30s, 5m, 2h, 7d, not {text!r}")
    return round(float(found[1]) * _MS[found[2] or "s"])
