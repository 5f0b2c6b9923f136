"""Calls of many clients about jobs, gathered into batches for the store.

    routes ─▶ JobCalls ─▶ a batch for each verb ─▶ store ─▶ an answer for each client

Clients name a job by its id. Its contract, version, tenant and type never change; they are read once and kept in
memory. Concurrent calls of different clients go in one statement, and each client gets its own answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from tenure.client.batching import Batcher
from tenure.contracts.declaration import Contract
from tenure.errors import Busy, JobNotFound, Refused, TenureError
from tenure.http.authentication import Caller
from tenure.http.contract_verifications import ContractVerifications
from tenure.http.error_response import ForeignTenant, error_status
from tenure.http.long_poll import ClaimFilter, WakeupRouter, group_claims
from tenure.http.worker_presence import WorkerPresence
from tenure.jobs import validation
from tenure.jobs.dataset import Pin
from tenure.jobs.flow import TaskOfFlow
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import Held, Job, NewJob
from tenure.jobs.outcome import Enqueued
from tenure.postgres.claim import Claimer, check_owner
from tenure.postgres.engine import only_answer
from tenure.postgres.store import Store
from tenure.queue import HolderReports

T = TypeVar("T")
#: The number of job identities kept in memory.
_REMEMBERED = 100_000
#: The node of a job that was remembered at its claim: it was not read.
_UNKNOWN = -1
#: The number of callers whose batches of new jobs are kept.
_CALLERS = 1_000
#: Seconds between repeated calls about a job whose row is locked: another transaction moves it, mostly within them.
_PAUSES_S = (0.01, 0.03, 0.1, 0.2, 0.4)
#: A call that waited this long for a locked row, in seconds, is answered Busy: others wait behind it.
_QUICK_S = 1.0


class JobIdentity(NamedTuple):
    """The columns of a job that never change."""

    contract: str
    version: str
    tenant: str
    type: str
    #: The node of a flow that it runs; None: it is in no flow.
    flow_node: int | None = None
    #: Whether it may read or write datasets.
    has_datasets: bool = True


class JobCalls:
    """The calls of the HTTP protocol on one store."""

    def __init__(self, store: Store, max_bytes: int = validation.MAX_BYTES) -> None:
        self.store = store
        self.wakeups = WakeupRouter(store)
        self.presence = WorkerPresence(store)
        self.verifications = ContractVerifications()
        self._reports = HolderReports(store)
        self._max_bytes = max_bytes
        self._identities: OrderedDict[int, JobIdentity] = OrderedDict()
        self._lookups: Batcher[int, JobIdentity] = Batcher(self._read_identities)
        self._attempts: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._enqueues: dict[tuple[str, bool, bool], Batcher[NewJob, Enqueued]] = {}
        # Each alone, because it may wait for another transaction; few, because each wait takes a connection.
        self._unique: Batcher[tuple[NewJob, str], Enqueued] = Batcher(self._enqueue_unique, largest=1, at_once=4)
        self._waiting_claims = asyncio.Semaphore(2)
        #: Pictures are drawn one at a time: each takes a thread that competes with the event loop.
        self.drawing = asyncio.Semaphore(1)
        self._pins: Batcher[Sequence[int], Mapping[int, Sequence[Pin]]] = Batcher(self._read_pins)
        self._claims_by_id: dict[str, Batcher[tuple[int, Claimer], Job]] = {}
        #: The last call about a job, until it is answered.
        self._unanswered: dict[int, asyncio.Future[Any]] = {}

    async def flush(self) -> None:
        """Wait until every call is answered."""
        await self.presence.stop()
        await self.verifications.stop()
        await self.wakeups.flush()
        batchers: list[Batcher[Any, Any]] = [self._lookups, self._unique]
        batchers += [*self._enqueues.values(), *self._claims_by_id.values()]
        for batcher in batchers:
            await batcher.flush()
        await self._reports.flush()

    async def contracts(self, names: Iterable[str]) -> dict[str, Contract | TenureError]:
        """The contracts of these names, or the error of each."""
        found: dict[str, Contract | TenureError] = {}
        for name in dict.fromkeys(names):
            try:
                found[name] = await self.store.contract(name)
            except TenureError as unknown:
                found[name] = unknown
        return found

    def enqueue(self, job: NewJob, contract: Contract | TenureError, caller: Caller) -> asyncio.Future[Enqueued]:
        """Make a job in one batch with others of the same caller; refuses bad input before it joins the batch."""
        if isinstance(contract, TenureError):
            raise contract
        validation.check_new_job(contract, job, self._max_bytes)  # here, so that one bad job does not split its batch
        if job.unique is not None:
            return self._unique.ask((job, caller.actor))
        key = (caller.actor, job.key is not None, job.uses_datasets)
        batcher = self._enqueues.get(key)
        if batcher is None:
            if len(self._enqueues) >= _CALLERS:
                self._enqueues = {known: one for known, one in self._enqueues.items() if one.is_busy}
            enqueue = partial(self.store.enqueue_many, created_by=caller.actor)
            batcher = self._enqueues[key] = Batcher(enqueue, at_once=4 if job.key is not None else 2)
        return batcher.ask(job)

    async def _enqueue_unique(self, calls: Sequence[tuple[NewJob, str]]) -> Sequence[Enqueued | Refused]:
        ((job, actor),) = calls
        return await self.store.enqueue_many([job], created_by=actor)

    async def claim(
        self, claim_filter: ClaimFilter, claimer: Claimer, wait_s: float, is_gone: Callable[[], Awaitable[bool]]
    ) -> list[Job]:
        """Take due jobs, or wait for some; refuses jobs that another caller won with the same claim key."""

        async def is_over() -> bool:
            return self.wakeups.is_closed or await is_gone()

        jobs = await self.wakeups.group(claim_filter).claim(claimer, wait_s, is_over)
        for job in jobs:
            if claim_filter.tenant not in (None, job.tenant_id):
                raise ForeignTenant("this claim key is another tenant's. Next: make a new one for each claim")
        check_owner(jobs, claimer.worker)
        for job in jobs:
            if job.id not in self._identities:
                self._remember(job.id, JobIdentity(job.contract, job.version, job.tenant_id, job.type, _UNKNOWN))
        return jobs

    async def claim_by_id(self, job_id: int, claimer: Claimer, caller: Caller) -> Job:
        """Take this job for a worker, in one batch with other claims by id; refuses a job of a paused queue."""
        identity = await self.identity(job_id, caller)
        batcher = self._claims_by_id.get(identity.contract)
        if batcher is None:
            batcher = self._claims_by_id[identity.contract] = Batcher(
                lambda calls: self._claim_ids(identity.contract, calls)
            )
        try:
            job = await batcher.ask((job_id, claimer))
        except Busy:
            # Another transaction has its row: wait for it outside of the batch, two at a time.
            async with self._waiting_claims:
                claim = partial(self.store.claim_ids_for_many, heeds_pause=True)
                job = only_answer(await claim(identity.contract, [job_id], [claimer]))
        check_owner([job], claimer.worker)
        return job

    async def _claim_ids(self, contract: str, calls: Sequence[tuple[int, Claimer]]) -> list[Job | TenureError]:
        """Take jobs by id. Calls with the same claim key go in different statements: a key is for one call."""
        answers: dict[int, Job | TenureError] = {}
        for members in group_claims([claimer for _, claimer in calls], len(calls)):
            ids, claimers = zip(*(calls[n] for n in members), strict=True)
            try:
                claim = partial(self.store.claim_ids_for_many, skip_locked=True, heeds_pause=True)
                taken = await claim(contract, ids, claimers)
            except TenureError as error:
                answers |= dict.fromkeys(members, error)
            else:
                answers |= zip(members, taken, strict=True)
        return [answers[n] for n in range(len(calls))]

    async def identity(self, job_id: int, caller: Caller) -> JobIdentity:
        """The identity of a job; refuses a job of another tenant."""
        found = self._identities.get(job_id)
        if found is None:
            found = await self._lookups.ask(job_id)
        else:
            self._identities.move_to_end(job_id)
        return _identity_of_caller(job_id, found, caller)

    async def task_of_flow(self, job_id: int, caller: Caller) -> TaskOfFlow | None:
        """The flow of a job, for its worker; None if it is in no flow, which costs no statement."""
        node_id = (await self.identity(job_id, caller)).flow_node
        if node_id == _UNKNOWN:
            node_id = (await self._lookups.ask(job_id)).flow_node
        return None if node_id is None else await self.store.flows.task(node_id)

    async def identities(self, ids: Iterable[int]) -> dict[int, JobIdentity | TenureError]:
        """The identities of jobs of any tenant, or the error of each; read together."""
        found: dict[int, Any] = {job_id: self._identities.get(job_id) for job_id in ids}
        unknown = [job_id for job_id, identity in found.items() if identity is None]
        found |= zip(unknown, await _answers(unknown, self._lookups.ask), strict=True)
        return found

    def known_identity(self, job_id: int) -> JobIdentity | None:
        """The identity of a job, if it is in memory."""
        return self._identities.get(job_id)

    async def held(self, job_id: int, claims: int, token: str, caller: Caller) -> Held:
        """The proof of a lease."""
        return self.proof(await self.identity(job_id, caller), job_id, claims, token, caller)

    def proof(self, found: JobIdentity | TenureError, job_id: int, claims: int, token: str, caller: Caller) -> Held:
        """The proof of a lease for a job of this identity; refuses a job of another tenant."""
        if isinstance(found, TenureError):
            raise found
        identity = _identity_of_caller(job_id, found, caller)
        return validation.check_held(
            Held(job_id, claims, validation.parse_uuid(token), identity.contract, identity.version)
        )

    def report(self, verb: str, call: HolderCall) -> asyncio.Future[Any]:
        """Report a holder's verb for one job, in a batch with the calls of other clients; the answer, or a refusal.

        Calls about one job go one after the other: together they would take one statement each, and all would wait.
        """
        if call.result is not None:
            validation.to_json("result", call.result, self._max_bytes)  # one bad result must not split its batch
        for name, text in (("key", call.key), ("reason", call.reason)):
            if text is not None:
                validation.check_name(name, text)
        job_id = call.held.id
        before = self._unanswered.get(job_id)
        future = self._send(verb, call) if before is None else asyncio.create_task(self._send_after(before, verb, call))
        self._unanswered[job_id] = future
        future.add_done_callback(
            lambda done: self._unanswered.pop(job_id) if self._unanswered.get(job_id) is done else None
        )
        return future

    async def _send_after(self, before: asyncio.Future[Any], verb: str, call: HolderCall) -> Any:
        await asyncio.wait([before])
        return await self._send(verb, call)

    def _send(self, verb: str, call: HolderCall) -> asyncio.Future[Any]:
        stores_more = call.events or call.outputs or call.dataset_events
        waits_for_row = stores_more or (verb == "heartbeat" and call.key is not None)
        if waits_for_row and verb != "fail":  # others would wait with it
            return asyncio.create_task(self.store.report_one(verb, call))
        return asyncio.ensure_future(self._reports.report(verb, call))

    async def report_patiently(self, verb: str, call: HolderCall) -> Any:
        """Report a verb for one job; while another transaction has its row, again, a few times."""
        for pause in _PAUSES_S:
            began = time.monotonic()
            try:
                return await self.report(verb, call)
            except Busy:
                if time.monotonic() - began > _QUICK_S:
                    raise
                await asyncio.sleep(pause)
        return await self.report(verb, call)

    async def pins(self, jobs: Sequence[Job]) -> Mapping[int, Sequence[Pin]]:
        """The generations that claimed jobs read and write, by job; nothing where they cannot be read.

        Better without them than lost: the jobs are claimed, and `GET /api/v1/jobs/{job_id}/datasets` has them.
        """
        known = self._identities
        ids = [job.id for job in jobs if job.id not in known or known[job.id].has_datasets]
        if ids:
            with contextlib.suppress(TenureError):
                return await self._pins.ask(ids)
        return {}

    async def _read_pins(self, claims: Sequence[Sequence[int]]) -> list[Mapping[int, Sequence[Pin]]]:
        """The pins of the jobs of many claims: one statement for each claim would cost as much as the claim itself."""
        found: dict[int, list[Pin]] = {}
        for pin in await self.store.datasets.pins_of([job_id for ids in claims for job_id in ids]):
            found.setdefault(pin.job_id, []).append(pin)
        return [found] * len(claims)

    def remember_attempt(self, job: Job) -> None:
        """Remember the claim number of this attempt."""
        self._attempts[job.id, job.counter] = job.claims
        if len(self._attempts) > _REMEMBERED:
            self._attempts.popitem(last=False)

    async def claims_of(self, job_id: int, attempt: int, caller: Caller) -> int | None:
        """The claim number of an attempt; None if there was no such attempt."""
        await self.identity(job_id, caller)
        if (known := self._attempts.get((job_id, attempt))) is not None:
            return known
        for job in await self.store.jobs([job_id]):
            if job.counter == attempt:
                return job.claims
        for row in reversed(await self.store.events(job_id)):
            if row.counter == attempt and row.trigger in ("claim", "reclaim"):
                return row.claims
        return None

    async def each(self, calls: Sequence[T], begin: Callable[[T], asyncio.Future[Any]]) -> list[Any]:
        """The answer to each of many calls; an error is an answer, unless all failed because the database is away."""
        answers = await _answers(calls, begin)
        failed = [one for one in answers if isinstance(one, TenureError)]
        if len(failed) == len(answers) and all(error_status(one) == 503 for one in failed):
            raise failed[0]
        return answers

    async def _read_identities(self, ids: Sequence[int]) -> list[JobIdentity | Refused]:
        found = {
            identity[0]: JobIdentity(*identity[1:])
            for identity in await self.store.identities(list(dict.fromkeys(ids)))
        }
        for job_id, identity in found.items():
            self._remember(job_id, identity)
        return [found.get(job_id) or JobNotFound(job_id) for job_id in ids]

    def _remember(self, job_id: int, identity: JobIdentity) -> None:
        self._identities[job_id] = identity
        if len(self._identities) > _REMEMBERED:
            self._identities.popitem(last=False)


async def _answers(calls: Sequence[T], begin: Callable[[T], asyncio.Future[Any]]) -> list[Any]:
    """Begin all calls, then wait for each answer or error; without a task for each, because there may be hundreds."""
    answers: list[Any] = []
    for one in calls:
        try:
            answers.append(begin(one))
        except TenureError as refused:
            answers.append(refused)
    failed: list[Exception] = []
    for place, answer in enumerate(answers):
        if isinstance(answer, asyncio.Future):
            try:
                answers[place] = await answer
            except TenureError as refused:
                answers[place] = refused
            except Exception as error:  # raised when all are answered
                failed.append(error)
    if failed:
        raise failed[0]
    return answers


def _identity_of_caller(job_id: int, identity: JobIdentity, caller: Caller) -> JobIdentity:
    """The identity of a job; refuses a job of another tenant."""
    if caller.tenant not in (None, identity.tenant):
        raise ForeignTenant(f"job {job_id} is another tenant's. Next: use a key of that tenant")
    return identity
