"""The client across HTTP: calls of the application and its workers to a dispatcher.

    worker, app ─▶ RemoteClient ─▶ dispatcher ─▶ PostgreSQL

There is one client for each event loop. Concurrent calls go in one request. Every call may be repeated after its answer
was lost: a claim has its claim key; starts, failures and the like have a key made of their lease, so that a repeat gets
the first answer; successes and hand-backs have none, and the worker reads in the log whether the first one counted. A
job that is made without a key is given one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar
from uuid import UUID, uuid4

from tenure.client import dispatcher_responses as responses
from tenure.client.batching import Batcher
from tenure.client.dispatcher_requests import DispatcherRequests, repeat_if_lost
from tenure.client.job_request import job_fields, tenant_field
from tenure.client.remote_datasets import RemoteDatasets
from tenure.client.remote_flows import RemoteFlows
from tenure.client.remote_schedules import RemoteSchedules
from tenure.client.remote_wakeups import poll_wakeups
from tenure.contracts.declaration import Contract
from tenure.contracts.stored_form import from_description
from tenure.contracts.versions import breaking_changes
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
from tenure.jobs import validation
from tenure.jobs.dataset import Output, check_event, check_output
from tenure.jobs.dataset_json import event_to_json, output_to_json
from tenure.jobs.event import LogEntry
from tenure.jobs.holder_call import HOLDER_VERBS, HolderCall
from tenure.jobs.job import Failure, Held, Job, NewJob
from tenure.jobs.job_type import JobType
from tenure.jobs.live_worker import LiveWorker
from tenure.jobs.outcome import Effect, Enqueued, Moved, Noted
from tenure.jobs.unserved import ServedTypes

T = TypeVar("T")

_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


#: Verbs whose repeat gets the first answer by a key made of the lease. After a lost success or hand-back the log tells.
_KEYED = frozenset({"start", "fail", "snooze", "cancelled", "compensated", "compensation_failed"})


class RemoteClient:
    """The calls of one event loop, through a dispatcher."""

    #: While the dispatcher is away, other workers can take a job over: a lease that was not renewed in time is lost.
    leases_run_on = True

    def __init__(self, url: str, key: str | None = None, *, max_bytes: int = validation.MAX_BYTES) -> None:
        self._requests = DispatcherRequests(url, key)
        self.schedules = RemoteSchedules(self._requests)
        self.datasets = RemoteDatasets(self._requests, max_bytes)
        self.flows = RemoteFlows(self._requests, max_bytes)
        self._max_bytes = max_bytes
        self._enqueues: Batcher[tuple[str, bool], Enqueued] = Batcher(self._make, at_once=4)
        self._starts: Batcher[tuple[str, HolderCall], Moved | None] = Batcher(partial(self._report, "starts"))
        self._ends: Batcher[tuple[str, HolderCall], Any] = Batcher(partial(self._report, "finishes"))

    async def close(self) -> None:
        """Wait until every call is answered, then close the connections."""
        await self._enqueues.flush()
        await self._starts.flush()
        await self._ends.flush()
        await self._requests.close()

    def abandon(self) -> None:
        """Do nothing: the connections cannot be closed without their event loop."""

    async def contracts(self) -> Mapping[str, Contract]:
        """Every registered contract in its newest version, with the dispatcher's settings."""
        declared: list[tuple[str, Any]] = await self._read(
            "/api/v1/contracts", lambda body: [(one["name"], one["declaration"]) for one in body["contracts"]]
        )
        found: dict[str, Contract] = {}
        for name, declaration in declared:
            try:
                found[name] = from_description(declaration)
            except (KeyError, TypeError, ValueError) as error:
                raise ContractError(
                    f"the dispatcher at {self._requests.url} declares contract {name} in a form that this Tenure does "
                    f"not know ({error}). Next: upgrade the older of the two"
                ) from error
        self._requests.invalid.update(contract.invalid_transition for contract in found.values())
        return found

    async def registered(self, contract: Contract) -> Mapping[str, str]:
        """Version → digest of a registered contract. A dispatcher tells the newest version; older ones are in it."""
        if (newest := (await self.contracts()).get(contract.name)) is None:
            return {}
        is_older = newest.version != contract.version and not list(breaking_changes(contract, newest))
        return {newest.version: newest.digest(), **({contract.version: contract.digest()} if is_older else {})}

    def enqueue(self, job: NewJob) -> Awaitable[Enqueued]:
        """Make a job, in one batch with concurrent enqueues."""
        return self._enqueues.ask(self._new(job))

    async def prepare(self, jobs: Sequence[NewJob]) -> Callable[[], Awaitable[Sequence[Enqueued | Exception]]]:
        """Check jobs and encode them; call the result to make them: an `Enqueued` or an error for each."""
        new: list[tuple[str, bool]] = []
        for n, job in enumerate(jobs, 1):
            try:
                new.append(self._new(job))
            except BadInput as error:
                raise type(error)(f"job {n} of {len(jobs)}: {error}") from None
        return lambda: self._make(new)

    async def job(self, job_id: int) -> Job:
        """A job as it is now, live or finished."""
        return await self._read(f"/api/v1/jobs/{job_id}", responses.job, job_id)

    async def cancel(self, job_id: int, *, mode: str, reason: str | None, actor: str) -> Moved | Noted:
        """Cancel a job; the log names the owner of the API key, not the actor."""
        path, request = f"/api/v1/jobs/{job_id}/cancel", {"mode": mode, "reason": reason, "idempotency_key": _key()}
        body = validation.to_json("cancel", request)
        return await repeat_if_lost(
            lambda: self._requests.send("POST", path, body, responses.moved_or_noted, about=job_id, traced=True)
        )

    async def transition(self, job_id: int, to: str, *, reason: str | None, actor: str) -> Moved:
        """Move a job to a state; the log names the owner of the API key, not the actor."""
        path, asked = f"/api/v1/jobs/{job_id}/transition", {"to": to, "reason": reason, "idempotency_key": _key()}
        body = validation.to_json("transition", asked)
        return await repeat_if_lost(
            lambda: self._requests.send("POST", path, body, responses.moved, about=job_id, traced=True)
        )

    async def may_work(self) -> None:
        """Refuse an API key that may not work: the worker would wait for jobs for ever."""
        with contextlib.suppress(CannotConnect, ConnectionLost):  # the worker asks again all the time
            await self.due([], LiveWorker("", ("default",), ()))

    async def declare(self, types: Sequence[JobType], *, application: str | None = None, by: str | None = None) -> bool:
        """Send the options of job types to the dispatcher; whether this API key may store them."""
        request = {"types": [asdict(one) for one in types], "application": application, "declared_by": by}
        body = _text({name: value for name, value in request.items() if value is not None})
        try:
            await repeat_if_lost(lambda: self._requests.send("PUT", "/api/v1/types", body))
        except NotPermitted as error:
            if error.reason_code == "AUTH_REQUIRED":
                raise
            return False
        return True

    async def see(self, worker: LiveWorker, *, is_new: bool) -> None:
        """Tell the dispatcher that the worker is alive, also when it has nothing to claim; it writes the row."""
        request = {
            "worker_id": worker.name, "queues": worker.queues, "contracts": worker.contracts, "types": worker.types,
            "options": [asdict(one) for one in worker.declares], "worker": _describe(worker), "busy": worker.busy,
            "loop_lag_s": worker.loop_lag_s, "schedules": dict(worker.schedules or {}),
        }  # fmt: skip
        await self._requests.send("PUT", "/api/v1/workers", _text(request))

    async def leave(self, worker: LiveWorker) -> None:
        """Tell the dispatcher that the worker stops; it deletes the row."""
        request = {"worker_id": worker.name, "host": worker.host, "pid": worker.pid}
        await self._requests.send("POST", "/api/v1/workers/leave", _text(request))

    async def takers(self) -> Sequence[ServedTypes] | None:
        """The queues and types that live workers serve; None if this API key may not read them."""
        try:
            return await self._requests.send("GET", "/api/v1/workers", None, responses.served_types)
        except NotPermitted:
            return None

    async def withdraw(self, worker: LiveWorker) -> None:
        """Do nothing: the dispatcher ends stored options and schedules for the workers that it sees."""

    async def listen(self, on_wakeup: Callable[[str, str], None]) -> None:
        """Listen for wake-ups until cancelled."""
        await poll_wakeups(self._requests, on_wakeup)

    async def due(self, contracts: Sequence[str], worker: LiveWorker) -> list[str]:
        """Those of these contracts that have a due job of the worker's queues and types."""
        request: dict[str, Any] = {"contracts": contracts, "queues": worker.queues}
        if worker.types:
            request["types"] = worker.types
        return await self._requests.send(
            "POST", "/api/v1/due", _text(request), lambda body: [str(one) for one in body["contracts"]]
        )

    async def catch_up_flows(self, until: datetime | None) -> datetime | None:
        """Do nothing: the dispatcher goes on with flows."""
        return None

    async def claim(
        self, contract: str, worker: LiveWorker, *, limit: int, claim_key: UUID, is_repeat: bool = False
    ) -> list[Job]:
        """Claim due jobs of the worker's queues and types; the same claim key again gets the same jobs."""
        request = {
            "contract": contract, "queues": worker.queues, "types": worker.types, "worker_id": worker.name,
            "limit": limit, "claim_key": str(claim_key), "record": False, "worker": _describe(worker),
            "options": [asdict(one) for one in worker.declares if one.contract == contract],
        }  # fmt: skip
        return await self._requests.send(
            "POST", "/api/v1/claims", _text(request), lambda body: [responses.claimed(one) for one in body["claims"]]
        )

    def call(self, verb: str, call: HolderCall) -> Awaitable[Any]:
        """Report a holder's verb for one job; starts and ends go in a batch with concurrent calls."""
        if verb == "start":
            return self._starts.ask((verb, call))
        if HOLDER_VERBS[verb].ends_hold:
            return self._ends.ask((verb, call))
        return self._send(call.held, HOLDER_VERBS[verb].path, responses.moved_or_noted, self._facts(verb, call))

    async def report(self, verb: str, calls: Sequence[HolderCall]) -> list[Any]:
        """Report a holder's verb for many jobs; an answer or an error for each, in order."""
        if verb == "heartbeat":
            return await self._heartbeat(calls)
        return await self._report("finishes", [(verb, call) for call in calls])

    async def effects(self, job_id: int) -> dict[str, Any]:
        """The nodes of a job that have had their effect, newest first, with the result of each."""
        return await self._read(f"/api/v1/jobs/{job_id}/effects", lambda body: dict(body["effects"]), job_id)

    async def effect(self, held: Held, node: str, result: Any, *, compensable: bool) -> Effect:
        """Record the effect of a node."""
        text = validation.to_json("result", result, self._max_bytes)
        name = _text(validation.check_name("node", node))
        facts = [f'"node":{name}', f'"result":{text}', f'"compensable":{_text(compensable)}']
        return await self._send(held, "effect", responses.effect, facts)

    async def undone(self, held: Held, node: str) -> None:
        """Record that the effect of a node is undone."""
        await self._send(held, "undone", lambda _: None, [f'"node":{_text(node)}'])

    async def log(self, job_id: int) -> list[LogEntry]:
        """The log of a job."""
        rows: list[LogEntry] = []
        path, cursor = f"/api/v1/jobs/{job_id}/events", ""
        while True:
            page, following = await self._read(path + cursor, responses.log_page, job_id)
            rows += page
            if following is None:
                return rows
            cursor = f"?cursor={following}"

    async def _read(self, path: str, read: Callable[[Any], T], about: int | None = None) -> T:
        """Read something; again where the answer was lost."""
        return await repeat_if_lost(lambda: self._requests.send("GET", path, None, read, about=about, traced=True))

    async def _send(self, held: Held, path: str, read: Callable[[Any], T], facts: Sequence[str]) -> T:
        """Send a request about one held job."""
        body = ",".join([_proof(held), *facts])
        url = f"/api/v1/jobs/{held.id}/{path}"
        return await self._requests.send("POST", url, f"{{{body}}}", read, about=held.id, traced=True)

    async def _report(self, endpoint: str, calls: Sequence[tuple[str, HolderCall]]) -> list[Any]:
        """Send calls to an endpoint that takes many; for each a move, a note, None (no such step) or an error."""
        if any(call.outputs for _, call in calls):
            return await self._report_with_outputs(endpoint, calls)
        return await self._send_many(endpoint, calls)

    async def _report_with_outputs(self, endpoint: str, calls: Sequence[tuple[str, HolderCall]]) -> list[Any]:
        """Stage large outputs, then send the calls; a call whose rows cannot be staged gets that error."""
        answers: dict[int, Any] = {}
        ready: list[tuple[str, HolderCall]] = []
        for n, (verb, call) in enumerate(calls):
            try:
                outputs = await self.datasets.stage_large(call.held, call.outputs) if call.outputs else ()
            except TenureError as error:
                if len(calls) == 1:
                    raise
                answers[n] = error
            else:
                ready.append((verb, replace(call, outputs=outputs)))
        sent = iter(await self._send_many(endpoint, ready))
        return [answers[n] if n in answers else next(sent) for n in range(len(calls))]

    async def _send_many(self, endpoint: str, calls: Sequence[tuple[str, HolderCall]]) -> list[Any]:
        items: list[str] = []
        for verb, call in calls:
            name = f'"id":"{call.held.id}"'
            if endpoint == "finishes":
                name += f',"verb":"{HOLDER_VERBS[verb].path}"'
            items.append(f"{{{','.join([name, _proof(call.held), *self._facts(verb, call)])}}}")
        read = responses.moved_or_none if endpoint == "starts" else responses.moved_or_noted
        about = [call.held.id for _, call in calls]
        return await self._requests.batch(f"/api/v1/{endpoint}", endpoint, items, lambda _, one: read(one), about=about)

    async def _heartbeat(self, calls: Sequence[HolderCall]) -> list[Any]:
        """Report that the work on these jobs goes on."""
        answers = await self._report("heartbeats", [("heartbeat", call) for call in calls])
        failed = [one for one in answers if isinstance(one, TenureError) and not isinstance(one, Refused)]
        if failed and len(failed) == len(answers):
            raise failed[0]
        # Nobody knows whether these heartbeats arrived: they are sent again.
        return [Busy(call.held.id) if one in failed else one for call, one in zip(calls, answers, strict=True)]

    def _facts(self, verb: str, call: HolderCall) -> list[str]:
        """The facts of a call as JSON members, with the key that makes a repeat safe where the verb needs one."""
        facts = HOLDER_VERBS[verb].facts
        members: list[str] = []
        if "result" in facts:
            members.append(f'"result":{validation.to_json("result", call.result, self._max_bytes)}')
        if "value" in facts:
            members.append(f'"value":{validation.to_json(verb, call.value, self._max_bytes)}')
        if isinstance(call.failure, Failure):
            members.append(f'"error":{validation.to_json("error", dict(call.failure.facts()), self._max_bytes)}')
        if "delay_ms" in facts:
            members.append(f'"seconds":{call.delay_ms / 1_000}')
        if "reason" in facts:
            members.append(f'"reason":{validation.to_json("reason", call.reason)}')
        if call.outputs:
            members.append(f'"outputs":[{",".join(self._output(n, one) for n, one in enumerate(call.outputs))}]')
        if call.dataset_events:
            for n, event in enumerate(call.dataset_events):
                check_event(f"events[{n}]", event)
            members.append(f'"dataset_events":{_text(list(map(event_to_json, call.dataset_events)))}')
        if call.blocks:
            members.append('"blocks":true')
        if verb in _KEYED:
            members.append(f'"idempotency_key":"{HOLDER_VERBS[verb].path}:{call.held.claims}:{call.held.token}"')
        return members

    def _output(self, place: int, output: Output) -> str:
        """An output to a dataset as JSON."""
        rows = check_output(f"outputs[{place}]", output, self._max_bytes)
        text = _text({name: value for name, value in output_to_json(output).items() if name != "rows"})
        return f'{text[:-1]},"rows":[{",".join(rows)}]}}' if rows else text

    async def _make(self, new: Sequence[tuple[str, bool]]) -> list[Any]:
        """Make jobs: an `Enqueued` or an error for each."""
        # No other caller has a key that was made here: this call made the job, even if not at its first try.
        return await self._requests.batch(
            "/api/v1/jobs/batch", "jobs", [body for body, _ in new],
            lambda n, one: Enqueued(int(one["id"]), new[n][1] or bool(one["made"])), answers="jobs", keyed=True,
        )  # fmt: skip

    def _new(self, job: NewJob) -> tuple[str, bool]:
        """A new job as JSON, and whether its key was made here; refuses what cannot be sent."""
        fields, payload = job_fields(job, self._max_bytes)
        fields |= {"idempotency_key": _key() if job.key is None else job.key, **tenant_field(job.tenant_id)}
        fields |= {name: value for name, value in _unique_fields(job).items() if value is not None}
        # Whether a unique job was made, only the dispatcher knows.
        return f'{validation.to_json("job", fields)[:-1]},"payload":{payload}}}', job.key is None and job.unique is None


def _unique_fields(job: NewJob) -> dict[str, Any]:
    """How the job is unique, as the request has it."""
    if job.unique is None:
        return {}
    period_ms = job.unique.period_ms
    return {
        "unique": job.unique.mode if period_ms is None else period_ms / 1_000,
        "unique_by": job.unique.by and list(job.unique.by), "on_conflict": job.unique.on_conflict,
    }  # fmt: skip


def _proof(held: Held) -> str:
    """The proof of a lease as JSON members."""
    return f'"claims":{held.claims},"lease_token":"{held.token}"'


def _describe(worker: LiveWorker) -> dict[str, Any]:
    """The worker, as each claim describes it: the dispatcher writes the row of the live worker."""
    return {name: getattr(worker, name) for name in ("application", "version", "release", "host", "pid", "slots")}


def _key() -> str:
    return f"made:{uuid4().hex}"
