"""`tenure enqueue`: create one job."""

from __future__ import annotations

import json
import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from tenure.cli.command import Output, Store, call_store, command
from tenure.cli.options import DatabaseUrl, os_user
from tenure.cli.output import job_summary, note
from tenure.errors import BadInput
from tenure.jobs.job import NewJob
from tenure.jobs.unique import OnConflict, UniqueOption, unique_rule

_Key = Annotated[str | None, typer.Option("--key", help="Idempotency key: a repeat with the same job makes no job.")]
_Delay = Annotated[str | None, typer.Option("--delay", help="Wait at least 1.5 (seconds), 500ms, 30s, 5m, 2h, 7d.")]
_Limit = Annotated[
    int | None, typer.Option("--max-attempts", help="The limit that the contract counts; default: its own.")
]

_Unique = Annotated[
    str | None,
    typer.Option("--unique", help="At most one such job: waiting, active (waits or runs), or for a time like 5m."),
]
_UniqueBy = Annotated[
    list[str] | None, typer.Option("--unique-by", help="An argument that must be equal; repeatable; default: all.")
]
_OnConflict = Annotated[
    OnConflict | None,
    typer.Option("--on-conflict", help="With a unique job in the way: return it, replace its payload, or refuse."),
]
_Expires = Annotated[
    str | None, typer.Option("--expires", help="Cancel the job if it has not begun within 30s, 5m, 2h, 7d.")
]

_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*(ms|s|m|h|d)?\Z")
_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@command
def enqueue(
    type_: Annotated[str, typer.Argument(metavar="TYPE", help="The task's name.")],
    payload: Annotated[str, typer.Option("--payload", help="The arguments: JSON, @FILE, or - for stdin.")] = "{}",
    contract: Annotated[str, typer.Option("--contract", help="The contract.")] = "standard",
    queue: Annotated[str, typer.Option("--queue", help="The queue.")] = "default",
    tenant: Annotated[str, typer.Option("--tenant", help="The tenant.")] = "default",
    key: _Key = None,
    delay: _Delay = None,
    priority: Annotated[int, typer.Option("--priority", min=0, max=9, help="0 goes first, 9 last.")] = 5,
    max_attempts: _Limit = None,
    unique: _Unique = None,
    unique_by: _UniqueBy = None,
    on_conflict: _OnConflict = None,
    expires: _Expires = None,
    database_url: DatabaseUrl = None,
) -> Output:
    """Create a job and print its id, its state and the next command."""
    new = NewJob(
        type_, _parse_payload(payload), contract, queue=queue, tenant_id=tenant, key=key, priority=priority,
        delay_ms=None if delay is None else _parse_duration("--delay", delay), max_attempts=max_attempts,
        unique=unique_rule(_parse_unique(unique), unique_by or None, on_conflict),
        expires_ms=None if expires is None else _parse_duration("--expires", expires),
    )  # fmt: skip

    async def create(store: Store) -> Output:
        created = await store.enqueue(new, created_by=os_user())
        (job,) = await store.jobs([created.job_id])
        unserved = await store.workers.why_unserved(job.contract, job.queue, job.type) if job.role == "ready" else None
        if unserved is not None:
            note(f"notice: {unserved}; the job waits until one comes that does")
        how = "is" if created.made else f"was made before{'' if key is None else ' with this key'}; it is"
        text = f"job {job.id} {how} {job.state} in queue {job.queue}\nNext: tenure jobs show {job.id}"
        return Output({**job_summary(job), "due_at": job.due_at, "made": created.made}, text)

    return call_store(database_url, create)


def _parse_payload(option: str) -> Any:
    """The JSON of the option, of its file or of stdin; refuses anything else and names the place of the fault."""
    source, text = "--payload", option
    if option == "-":
        source, text = "stdin", _decode("stdin", sys.stdin.buffer.read())
    elif option.startswith("@"):
        source = option[1:]
        try:
            text = _decode(source, Path(source).read_bytes())
        except OSError as error:
            raise BadInput(f"the file {source!r} cannot be read: {error.strerror or error}. Next: check it") from None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = text.splitlines()[error.lineno - 1 : error.lineno] or [""]
        near = line[0][max(0, error.colno - 11) : error.colno + 9]
        raise BadInput(
            f"{source} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}, near {near!r}. "
            'Next: give an object like \'{"to": "ada"}\', in quotes'
        ) from None
    except (RecursionError, ValueError) as error:  # nested too deep, or a number with too many digits
        raise BadInput(f"{source} is not JSON that can be stored: {error}") from None


def _decode(source: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{source} is not UTF-8 at byte {error.start}. Next: convert it") from None


def _parse_unique(text: str | None) -> UniqueOption | None:
    """The words of --unique, or its period."""
    match text:
        case None | "waiting" | "active" as word:
            return word
    return timedelta(milliseconds=_parse_duration("--unique", text))


def _parse_duration(option: str, text: str) -> int:
    """The milliseconds of a text like 1.5, 500ms or 2h."""
    found = _DURATION.match(text.strip())
    if found is None:
        words = "waiting, active, " if option == "--unique" else ""
        raise BadInput(f"{option} is {words}a number of seconds, or like 500ms, 30s, 5m, 2h, 7d, not {text!r}")
    return round(float(found[1]) * _MS[found[2] or "s"])
