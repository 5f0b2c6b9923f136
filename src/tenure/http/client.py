"""Across HTTP: what the application and its workers say to a dispatcher, in the verbs that `Local` has for PostgreSQL.

    worker, app ─▶ Remote ─▶ dispatcher ─▶ PostgreSQL

One for each event loop. Whatever is said at the same time goes in one request. Every call may be repeated after its
answer was lost. A claim has its claim key. Starts, failures and the like have a key made of their lease, so that a
repeat gets the first answer. Successes and what is handed back have none: the worker reads in the log whether the first
one counted. A job that is made without a key is given one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC
from typing import Any, TypeVar
from uuid import UUID, uuid4

from tenure import intake
from tenure.coalesce import Coalescer
from tenure.contract import Contract
from tenure.errors import (
    BadInput,
    Busy,
    CannotConnect,
    ConnectionLost,
    ContractError,
    NotPermitted,
    Refused,
    TenureError,
)
from tenure.event import Logged
from tenure.http import client_answers as answers
from tenure.http.client_calls import Calls, surely
from tenure.http.client_wakeups import Hearing
from tenure.job import Failure, Held, Job, NewJob
from tenure.job_type import JobType
from tenure.outcome import Effect, Enqueued, Moved, Noted
from tenure.queue import Decision
from tenure.versions import from_description

T = TypeVar("T")

_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class Remote:
    """The verbs of one event loop, through a dispatcher."""

    #: While the dispatcher is away others may take what is held here: a lease that was not renewed in time is lost.
    leases_run_on = True

    def __init__(
        self, url: str, key: str | None = None, *, max_bytes: int = intake.MAX_BYTES, connections: int = 16
    ) -> None:
        self._calls = Calls(url, key, connections=connections)
        self._max_bytes = max_bytes
        self._enqueues: Coalescer[tuple[str, bool], Enqueued] = Coalescer(self._make, at_once=4)
        self._starts: Coalescer[Held, Moved | None] = Coalescer(self._start)
        self._ends: Coalescer[tuple[Held, str], Moved] = Coalescer(self._finish)

    async def close(self) -> None:
        """Let what is under way end, then close the connections."""
        await self._enqueues.rest()
        await self._starts.rest()
        await self._ends.rest()
        await self._calls.close()

    def abandon(self) -> None:
        """Nothing can be closed without its event loop; the connections go with the memory of this one."""

    async def contracts(self) -> Mapping[str, Contract]:
        """Every registered contract in its newest version, with the dispatcher's numbers."""
        declared: list[tuple[str, Any]] = await self._read(
            "/api/v1/contracts", lambda told: [(one["name"], one["declaration"]) for one in told["contracts"]]
        )
        found: dict[str, Contract] = {}
        for name, declaration in declared:
            try:
                found[name] = from_description(declaration)
            except (KeyError, TypeError, ValueError) as error:
                raise ContractError(
                    f"the dispatcher at {self._calls.url} declares contract {name} in a way that this Tenure does not "
                    f"know ({error}). Next: upgrade whichever of the two is older"
                ) from error
        self._calls.invalid.update(contract.invalid_transition for contract in found.values())
        return found

    def enqueue(self, job: NewJob) -> Awaitable[Enqueued]:
        """Make a job, together with those that are made at the same time."""
        return self._enqueues.ask(self._new(job))

    async def prepare(self, jobs: Sequence[NewJob]) -> Callable[[], Awaitable[Sequence[Enqueued | Exception]]]:
        """Check jobs and write them out; what makes them: for each an `Enqueued`, or why there is none."""
        new: list[tuple[str, bool]] = []
        for n, job in enumerate(jobs, 1):
            try:
                new.append(self._new(job))
            except BadInput as error:
                raise type(error)(f"job {n} of {len(jobs)}: {error}") from None
        return lambda: self._make(new)

    async def job(self, job_id: int) -> Job:
        """A job as it is now, live or finished."""
        return await self._read(f"/api/v1/jobs/{job_id}", answers.job, job_id)

    async def cancel(self, job_id: int, *, mode: str, reason: str | None, actor: str) -> Moved | Noted:
        """Cancel a job; the log names the key's owner, not the actor."""
        path, asked = f"/api/v1/jobs/{job_id}/cancel", {"mode": mode, "reason": reason, "idempotency_key": _key()}
        body = intake.document("cancel", asked)
        return await surely(
            lambda: self._calls.ask("POST", path, body, answers.moved_or_noted, about=job_id, traced=True)
        )

    async def may_work(self) -> None:
        """Refuse to work with a key that may not: it would wait for jobs for ever."""
        with contextlib.suppress(CannotConnect, ConnectionLost):  # it will be back, and is asked all the time
            await self.due([], ["default"])

    async def declare(self, types: Sequence[JobType]) -> bool:
        """Tell the dispatcher what types of jobs want otherwise than their contracts; whether this key may."""
        body = _text({"types": [asdict(one) for one in types]})
        try:
            await surely(lambda: self._calls.ask("PUT", "/api/v1/types", body))
        except NotPermitted as error:
            if error.reason_code == "AUTH_REQUIRED":
                raise
            return False
        return True

    async def listen(self, heard: Callable[[str, str], None]) -> None:
        """Hear wake-ups until cancelled."""
        await Hearing(self._calls, heard).run()

    async def due(self, contracts: Sequence[str], queues: Sequence[str]) -> list[str]:
        """Which of these contracts have something to claim from these queues now."""
        body = _text({"contracts": list(contracts), "queues": list(queues)})
        return await self._calls.ask("POST", "/api/v1/due", body, lambda told: [str(one) for one in told["contracts"]])

    async def claim(
        self,
        contract: str,
        queues: Sequence[str],
        *,
        worker: str,
        limit: int,
        claim_key: UUID,
        types: Sequence[str] | None = None,
    ) -> list[Job]:
        """Take due jobs, of these types or of any; asked again with the same key, the same ones."""
        asked: dict[str, Any] = {
            "contract": contract, "queues": list(queues), "worker_id": worker, "limit": limit,
            "claim_key": str(claim_key), "record": False,
        }  # fmt: skip
        if types is not None:
            asked["types"] = list(types)
        return await self._calls.ask(
            "POST", "/api/v1/claims", _text(asked), lambda told: [answers.claimed(one) for one in told["claims"]]
        )

    async def strangers(
        self, contracts: Sequence[str], queues: Sequence[str], known: Sequence[str], *, worker: str
    ) -> list[tuple[int, str]]:
        """Due jobs of types that are not known here, id and type; those that waited an hour for somebody are ended."""
        body = _text({"contracts": list(contracts), "queues": list(queues), "known": list(known), "worker_id": worker})
        return await self._calls.ask(
            "POST", "/api/v1/strangers", body, lambda told: [(int(one["id"]), one["type"]) for one in told["jobs"]]
        )

    async def start(self, held: Held) -> Moved | None:
        """Say that the handler begins; None under a contract without that step."""
        return await self._starts.ask(held)

    async def succeed(self, held: Sequence[Held], results: Sequence[Any]) -> list[Moved | TenureError]:
        """End jobs well, each with its result."""
        texts = [intake.document("result", result, self._max_bytes) for result in results]
        return await self._finish(
            [(one, f'"verb":"succeed","result":{text}') for one, text in zip(held, texts, strict=True)]
        )

    async def fail(self, held: Held, failure: Failure) -> Decision:
        """Report a failure; the dispatcher decides."""
        error = intake.document("error", dict(failure.facts()), self._max_bytes)
        return Decision.of(await self._ends.ask((held, f'"verb":"fail","error":{error},{_once(held, "fail")}')))

    async def snooze(self, held: Held, delay_ms: int) -> Moved:
        """Put a job off."""
        seconds = delay_ms / 1_000
        return await self._ends.ask((held, f'"verb":"snooze","seconds":{seconds},{_once(held, "snooze")}'))

    async def hand_back(
        self, held: Sequence[Held], delay_ms: int, reason: str | None
    ) -> list[Moved | Noted | TenureError]:
        """Give jobs back unfinished, each its contract's way."""
        said = f'"verb":"hand-back","seconds":{delay_ms / 1_000},"reason":{_text(reason)}'
        return await self._finish([(one, said) for one in held])

    async def cancelled(self, held: Held, reason: str | None) -> Moved:
        """End a job as cancelled."""
        said = f'"verb":"cancelled","reason":{intake.document("reason", reason)},{_once(held, "cancelled")}'
        return await self._ends.ask((held, said))

    async def heartbeat(self, held: Sequence[Held]) -> list[Noted | Refused]:
        """Say that the work goes on."""
        told = await self._calls.batch(
            "/api/v1/heartbeats", "heartbeats", [f"{{{_shown(one)}}}" for one in held],
            lambda _, one: answers.noted(one), about=[one.id for one in held],
        )  # fmt: skip
        failed = [one for one in told if isinstance(one, TenureError) and not isinstance(one, Refused)]
        if failed and len(failed) == len(told):
            raise failed[0]
        # Of whom nobody knows whether the beat was heard: ask again.
        return [Busy(one.id) if answer in failed else answer for one, answer in zip(held, told, strict=True)]

    async def progress(self, held: Held, value: Any) -> Noted:
        """Show how far the work is."""
        said = intake.document("progress", value, self._max_bytes)
        return await self._say(held, "progress", answers.noted, f'"value":{said}')

    async def checkpoint(self, held: Held, value: Any) -> Noted:
        """Save what the next attempt shall begin with."""
        said = intake.document("checkpoint", value, self._max_bytes)
        return await self._say(held, "checkpoint", answers.noted, f'"value":{said}')

    async def effects(self, job_id: int) -> dict[str, Any]:
        """The nodes of a job that have had their effect, newest first, with what came of each."""
        return await self._read(f"/api/v1/jobs/{job_id}/effects", lambda told: dict(told["effects"]), job_id)

    async def effect(self, held: Held, node: str, result: Any, *, compensable: bool) -> Effect:
        """Record that a node has had its effect."""
        text = intake.document("result", result, self._max_bytes)
        said = f'"node":{_text(intake.name("node", node))},"result":{text},"compensable":{_text(compensable)}'
        return await self._say(held, "effect", answers.effect, said)

    async def undone(self, held: Held, node: str) -> None:
        """Record that a node's effect is undone."""
        await self._say(held, "undone", lambda told: None, f'"node":{_text(node)}')

    async def compensated(self, held: Held) -> Moved:
        """End a job whose effects are undone."""
        return await self._say(held, "compensated", answers.moved, keyed=True)

    async def compensation_failed(self, held: Held, failure: Failure) -> Moved:
        """Set a job aside whose effects could not be undone."""
        said = f'"error":{intake.document("error", dict(failure.facts()), self._max_bytes)}'
        return await self._say(held, "compensation-failed", answers.moved, said, keyed=True)

    async def log(self, job_id: int) -> list[Logged]:
        """What happened to a job so far."""
        rows: list[Logged] = []
        path, cursor = f"/api/v1/jobs/{job_id}/events", ""
        while True:
            page, following = await self._read(path + cursor, answers.logged_page, job_id)
            rows += page
            if following is None:
                return rows
            cursor = f"?cursor={following}"

    async def _read(self, path: str, read: Callable[[Any], T], about: int | None = None) -> T:
        """Look at something, again where the answer was lost."""
        return await surely(lambda: self._calls.ask("GET", path, None, read, about=about, traced=True))

    async def _say(self, held: Held, verb: str, read: Callable[[Any], T], said: str = "", *, keyed: bool = False) -> T:
        """Say this of one job that is held."""
        parts = [f'"claims":{held.claims},"lease_token":"{held.token}"', said, _once(held, verb) if keyed else ""]
        body = ",".join(part for part in parts if part)
        path = f"/api/v1/jobs/{held.id}/{verb}"
        return await self._calls.ask("POST", path, f"{{{body}}}", read, about=held.id, traced=True)

    async def _start(self, held: Sequence[Held]) -> list[Any]:
        """Say of each of these jobs that its handler begins."""
        return await self._calls.batch(
            "/api/v1/starts", "starts", [f"{{{_shown(one)},{_once(one, 'start')}}}" for one in held],
            lambda _, one: answers.moved_or_none(one), about=[one.id for one in held],
        )  # fmt: skip

    async def _finish(self, said: Sequence[tuple[Held, str]]) -> list[Any]:
        """What became of each job of which this is said: a move, a note, or an error."""
        return await self._calls.batch(
            "/api/v1/finishes", "finishes", [f"{{{_shown(held)},{words}}}" for held, words in said],
            lambda _, one: answers.moved_or_noted(one), about=[held.id for held, _ in said],
        )  # fmt: skip

    async def _make(self, new: Sequence[tuple[str, bool]]) -> list[Any]:
        """Make jobs: for each an `Enqueued`, or why there is none."""
        # Nobody else has a key that was made here: it is this call that made the job, even if not at its first try.
        return await self._calls.batch(
            "/api/v1/jobs/batch", "jobs", [body for body, _ in new],
            lambda n, one: Enqueued(int(one["id"]), new[n][1] or bool(one["made"])), answers="jobs", keyed=True,
        )  # fmt: skip

    def _new(self, job: NewJob) -> tuple[str, bool]:
        """A job to be made, as JSON, and whether its key was made for it; refuses what cannot be sent."""
        if job.version is not None:
            raise BadInput("which version of a contract a job is under is the dispatcher's to say; leave it out")
        payload = intake.document("payload", job.payload, self._max_bytes)
        fields: dict[str, Any] = {
            "type": job.type, "contract": job.contract, "queue": job.queue, "priority": job.priority,
            "idempotency_key": _key() if job.key is None else job.key,
        }  # fmt: skip
        if job.tenant_id != "default":  # else it is the key's own tenant's, where that has one
            fields["tenant_id"] = job.tenant_id
        if job.max_attempts is not None:
            fields["max_attempts"] = job.max_attempts
        if job.run_at is not None:
            if job.run_at.tzinfo is None:
                raise BadInput(f"run_at must be a datetime with a time zone, not {job.run_at!r}")
            fields["run_at"] = intake.moment("run_at", job.run_at).astimezone(UTC).isoformat()
        if job.delay_ms is not None:
            fields["delay_seconds"] = job.delay_ms / 1_000
        for name, value in (("trace_id", job.trace_id), ("correlation_id", job.correlation_id)):
            if value is not None:
                fields[name] = value
        return f'{intake.document("job", fields)[:-1]},"payload":{payload}}}', job.key is None


def _shown(held: Held) -> str:
    """What a holder shows."""
    return f'"id":"{held.id}","claims":{held.claims},"lease_token":"{held.token}"'


def _once(held: Held, verb: str) -> str:
    """A key that this verb has under this lease, and no other: said again, it is answered as before."""
    return f'"idempotency_key":"{verb}:{held.claims}:{held.token}"'


def _key() -> str:
    return f"made:{uuid4().hex}"
