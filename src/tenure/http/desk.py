"""The desk: what clients say, gathered into batches and said to the store.

Clients name a job by its id; whose it is and under which contract, which never changes, is asked once and remembered.
Whatever is said at the same time by different clients goes in one statement, and each gets its own answer.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from tenure import intake
from tenure.coalesce import Coalescer
from tenure.contract import Contract
from tenure.errors import BadInput, Busy, JobNotFound, Refused, StaleLease, TenureError
from tenure.http.callers import Caller
from tenure.http.lines import Bell, Which
from tenure.http.refusals import ForeignTenant, status_of
from tenure.job import Failure, Held, Job, NewJob
from tenure.outcome import Enqueued, Moved
from tenure.postgres.claiming import Claimer
from tenure.postgres.store import Store
from tenure.queue import Failures

T = TypeVar("T")
#: So many jobs' contracts and tenants are remembered.
_REMEMBERED = 100_000
#: A caller's enqueues go together; so many callers are remembered.
_CALLERS = 1_000
#: A job whose row is locked is asked for again after these times: somebody is moving it, and is quick about it.
_PAUSES_S = (0.01, 0.03, 0.1, 0.2, 0.4)
#: Who waited for so long in vain is told: others wait behind them.
_QUICK_S = 1.0
#: What the gate calls it.
_TRIGGERS = {"cancelled": "cancel"}


class Kind(NamedTuple):
    """What never changes of a job."""

    contract: str
    version: str
    tenant: str


@dataclass(frozen=True, slots=True)
class Said:
    """What a holder says of a job: the verb's own facts are set, the others are not."""

    held: Held
    key: str | None = None
    result: Any = None
    failure: Failure | None = None
    delay_ms: int = 0
    reason: str | None = None


class Desk:
    """The verbs of the protocol, on one store."""

    def __init__(self, store: Store, max_bytes: int = intake.MAX_BYTES) -> None:
        self.store = store
        self.bell = Bell(store)
        self.failures = Failures(store)
        self._max_bytes = max_bytes
        self._kinds: OrderedDict[int, Kind] = OrderedDict()
        self._asked: Coalescer[int, Kind] = Coalescer(self._ask_kinds)
        self._attempts: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._making: dict[tuple[str, bool], Coalescer[NewJob, Enqueued]] = {}
        self._patient = asyncio.Semaphore(2)
        self._named: dict[str, Coalescer[tuple[int, Claimer], Job]] = {}
        #: What was said last of a job, as long as it is not answered.
        self._words: dict[int, asyncio.Future[Any]] = {}
        self._said: dict[str, Coalescer[Said, Any]] = {
            verb: Coalescer(self._grouped(say)) for verb, say in self._verbs().items()
        }

    async def rest(self) -> None:
        """Wait until all that was said is answered."""
        await self.bell.rest()
        said: list[Coalescer[Any, Any]] = [self._asked, *self._making.values(), *self._named.values()]
        for coalescer in (*said, *self._said.values()):
            await coalescer.rest()
        await self.failures.rest()

    async def enqueue(self, job: NewJob, caller: Caller) -> Enqueued:
        """Make a job, together with those that the same caller makes at the same time."""
        return await self.make(job, await self.store.contract(job.contract, job.version), caller)

    async def contracts(self, names: Iterable[str]) -> dict[str, Contract | TenureError]:
        """The contracts of these names, or why there is none."""
        found: dict[str, Contract | TenureError] = {}
        for name in dict.fromkeys(names):
            try:
                found[name] = await self.store.contract(name)
            except TenureError as unknown:
                found[name] = unknown
        return found

    def make(self, job: NewJob, contract: Contract | TenureError, caller: Caller) -> asyncio.Future[Enqueued]:
        """Make a job whose contract is known by now; refuses what is wrong with it before it joins others."""
        if isinstance(contract, TenureError):
            raise contract
        intake.new_job(contract, job, self._max_bytes)  # here: one bad job must not take its batch apart
        which = (caller.actor, job.key is not None)
        making = self._making.get(which)
        if making is None:
            if len(self._making) >= _CALLERS:
                self._making = {known: one for known, one in self._making.items() if one.is_busy}

            async def make(jobs: Sequence[NewJob]) -> list[Enqueued | Refused]:
                return await self.store.enqueue_many(jobs, created_by=caller.actor)

            making = self._making[which] = Coalescer(make, at_once=4 if job.key is not None else 2)
        return making.ask(job)

    async def claim(
        self, which: Which, claimer: Claimer, wait_s: float, is_gone: Callable[[], Awaitable[bool]]
    ) -> list[Job]:
        """Take due jobs, or wait for some; refuses what another caller won with the same key."""
        intake.name("worker", claimer.worker)
        for queue in which.queues:
            intake.name("queue", queue)
        for kind in which.types or ():
            intake.name("type", kind)

        async def is_over() -> bool:
            return self.bell.is_over or await is_gone()

        jobs = await self.bell.line(which).claim(claimer, wait_s, is_over)
        for job in jobs:
            if which.tenant not in (None, job.tenant_id):
                raise ForeignTenant("this claim key is another tenant's. Next: make a new one for each claim")
            if job.lease_owner != claimer.worker:
                raise StaleLease(job.id, held_by=job.lease_owner, since=job.started_at)
        for job in jobs:
            self._remember(job.id, Kind(job.contract, job.version, job.tenant_id))
        return jobs

    async def claim_by_id(self, job_id: int, claimer: Claimer, caller: Caller) -> Job:
        """Take this job, together with others that are asked for by name."""
        kind = await self.kind(job_id, caller)
        named = self._named.get(kind.contract)
        if named is None:
            named = self._named[kind.contract] = Coalescer(lambda asked: self._take(kind.contract, asked))
        try:
            job = await named.ask((job_id, claimer))
        except Busy:
            # Somebody has its row: wait for it apart from the others, and with few at a time.
            async with self._patient:
                (answer,) = await self.store.claim_each(kind.contract, [job_id], [claimer])
            if isinstance(answer, Refused):
                raise answer from None
            job = answer
        if job.lease_owner != claimer.worker:
            raise StaleLease(job_id, held_by=job.lease_owner, since=job.started_at)
        return job

    async def _take(self, contract: str, asked: Sequence[tuple[int, Claimer]]) -> list[Job | TenureError]:
        """Take jobs by name, in as many statements as a key is asked with: each is for one call."""
        answers: dict[int, Job | TenureError] = {}
        left = list(range(len(asked)))
        while left:
            by_key: dict[object, int] = {}
            for n in left:
                by_key.setdefault(asked[n][1].key or n, n)
            turn = list(by_key.values())
            taken_on = set(turn)
            left = [n for n in left if n not in taken_on]
            ids, claimers = [asked[n][0] for n in turn], [asked[n][1] for n in turn]
            try:
                taken = await self.store.claim_each(contract, ids, claimers, skip_locked=True)
            except TenureError as error:
                answers |= dict.fromkeys(turn, error)
            else:
                answers |= zip(turn, taken, strict=True)
        return [answers[n] for n in range(len(asked))]

    async def kind(self, job_id: int, caller: Caller) -> Kind:
        """Under which contract a job is; refuses another tenant's."""
        found = self._kinds.get(job_id)
        if found is None:
            found = await self._asked.ask(job_id)
        else:
            self._kinds.move_to_end(job_id)
        return _own(job_id, found, caller)

    async def kinds(self, ids: Iterable[int]) -> dict[int, Kind | TenureError]:
        """Under which contracts jobs are, whosever they are, or why that is not known; asked at once."""
        found: dict[int, Any] = {job_id: self._kinds.get(job_id) for job_id in ids}
        unknown = [job_id for job_id, kind in found.items() if kind is None]
        found |= zip(unknown, await _heard(unknown, self._asked.ask), strict=True)
        return found

    def knows(self, job_id: int) -> Kind | None:
        """What is remembered of a job."""
        return self._kinds.get(job_id)

    async def held(self, job_id: int, claims: int, token: str, caller: Caller) -> Held:
        """A holder's proof."""
        return self.proof(await self.kind(job_id, caller), job_id, claims, token, caller)

    def proof(self, kind: Kind | TenureError, job_id: int, claims: int, token: str, caller: Caller) -> Held:
        """A holder's proof, of a job whose kind is known by now; refuses another tenant's."""
        if isinstance(kind, TenureError):
            raise kind
        own = _own(job_id, kind, caller)
        return intake.held(Held(job_id, claims, intake.token(token), own.contract, own.version))

    def say(self, verb: str, said: Said) -> asyncio.Future[Any]:
        """Say something of a job that is held, together with what others say; what became of it, or why not."""
        if said.result is not None:
            intake.document("result", said.result, self._max_bytes)  # here: it must not take its batch apart
        for kind, text in (("key", said.key), ("reason", said.reason)):
            if text is not None:
                intake.name(kind, text)
        job_id = said.held.id
        before = self._words.get(job_id)
        word = self._ask(verb, said) if before is None else asyncio.create_task(self._after(before, verb, said))
        self._words[job_id] = word
        word.add_done_callback(lambda word: self._words.pop(job_id) if self._words.get(job_id) is word else None)
        return word

    async def _after(self, before: asyncio.Future[Any], verb: str, said: Said) -> Any:
        """Words of one job go one after the other: together they would be so many statements, for which all wait."""
        await asyncio.wait([before])
        return await self._ask(verb, said)

    def _ask(self, verb: str, said: Said) -> asyncio.Future[Any]:
        return asyncio.create_task(self._fail(said)) if verb == "fail" else self._said[verb].ask(said)

    async def _fail(self, said: Said, events: Sequence[Any] | None = None) -> Moved | None:
        """Report a failure to the queue, which alone decides whether and when the job runs again."""
        failure = said.failure or Failure("failed")
        return (await self.failures.report(said.held, failure, key=said.key, events=events)).moved

    async def patiently(self, say: Callable[[], Awaitable[T]]) -> T:
        """Say something of one job; while somebody else is moving it, again, some times."""
        for pause in _PAUSES_S:
            began = time.monotonic()
            try:
                return await say()
            except Busy:
                if time.monotonic() - began > _QUICK_S:
                    raise
                await asyncio.sleep(pause)
        return await say()

    async def report(self, verb: str, said: Said, events: Sequence[Any]) -> Any:
        """End a job that is held, with the events that its holder reports: both, or neither."""
        if verb == "fail":
            return await self._fail(said, events)
        return await self.store.report(_TRIGGERS.get(verb, verb), said.held, events, result=said.result, key=said.key)

    def remember_attempt(self, job: Job) -> None:
        """Which claim this attempt of a job is."""
        self._attempts[job.id, job.counter] = job.claims
        if len(self._attempts) > _REMEMBERED:
            self._attempts.popitem(last=False)

    async def claims_of(self, job_id: int, attempt: int, caller: Caller) -> int | None:
        """Which claim an attempt of a job was; None where there was no such attempt."""
        await self.kind(job_id, caller)
        if (known := self._attempts.get((job_id, attempt))) is not None:
            return known
        for job in await self.store.jobs([job_id]):
            if job.counter == attempt:
                return job.claims
        for row in reversed(await self.store.events(job_id)):
            if row.counter == attempt and row.trigger in ("claim", "reclaim"):
                return row.claims
        return None

    async def each(self, asked: Sequence[T], begin: Callable[[T], asyncio.Future[Any]]) -> list[Any]:
        """What became of each of many. A refusal is an answer; so is that the database went away, unless for all."""
        answers = await _heard(asked, begin)
        failed = [one for one in answers if isinstance(one, TenureError)]
        if len(failed) == len(answers) and all(status_of(one) == 503 for one in failed):
            raise failed[0]
        return answers

    def _verbs(self) -> dict[str, Callable[[Sequence[Said], Any], Awaitable[Sequence[Any]]]]:
        store = self.store
        return {
            "start": lambda said, keys: store.start_many(_held(said), keys=keys),
            "succeed": lambda said, keys: store.succeed_many(_held(said), [one.result for one in said], keys=keys),
            "snooze": lambda said, keys: store.snooze_many(_held(said), [one.delay_ms for one in said], keys=keys),
            "heartbeat": lambda said, _: store.heartbeat_many(_held(said)),
            "hand-back": lambda said, keys: store.hand_back_many(
                _held(said), [one.delay_ms for one in said], [one.reason for one in said], keys=keys
            ),
            "cancelled": lambda said, keys: store.cancelled_many(_held(said), [one.reason for one in said], keys=keys),
        }

    @staticmethod
    def _grouped(
        say: Callable[[Sequence[Said], Any], Awaitable[Sequence[Any]]],
    ) -> Callable[[Sequence[Said]], Awaitable[list[Any]]]:
        """What carries a key goes apart from what does not, which may take a shorter way; and so does each contract.

        What goes wrong with one part is told to those who are in it: the others are done, or will be.
        """

        async def send(said: Sequence[Said]) -> list[Any]:
            answers: dict[int, Any] = {}
            parts: dict[tuple[bool, str, str], list[int]] = {}
            for n, one in enumerate(said):
                parts.setdefault((one.key is not None, one.held.contract, one.held.version), []).append(n)
            for (keyed, _, _), part in parts.items():
                keys = [said[n].key for n in part] if keyed else None
                try:
                    answers |= zip(part, await say([said[n] for n in part], keys), strict=True)
                except BadInput as error:
                    if len(part) == 1:
                        answers[part[0]] = error
                        continue
                    for n in part:  # one of them is at fault, and nothing was written
                        (answers[n],) = await send([said[n]])
                except TenureError as error:
                    answers |= dict.fromkeys(part, error)
            return [answers[n] for n in range(len(said))]

        return send

    async def _ask_kinds(self, ids: Sequence[int]) -> list[Kind | Refused]:
        found = {job_id: Kind(*kind) for job_id, *kind in await self.store.kinds(list(dict.fromkeys(ids)))}
        for job_id, kind in found.items():
            self._remember(job_id, kind)
        return [found.get(job_id) or JobNotFound(job_id) for job_id in ids]

    def _remember(self, job_id: int, kind: Kind) -> None:
        self._kinds[job_id] = kind
        if len(self._kinds) > _REMEMBERED:
            self._kinds.popitem(last=False)


async def _heard(asked: Sequence[T], begin: Callable[[T], asyncio.Future[Any]]) -> list[Any]:
    """What became of each, or why nothing; all are begun first, without a task for each: there may be hundreds."""
    answers: list[Any] = []
    for one in asked:
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
            except Exception as error:  # said when all are heard: nobody else would
                failed.append(error)
    if failed:
        raise failed[0]
    return answers


def _own(job_id: int, kind: Kind, caller: Caller) -> Kind:
    """A job's kind; refuses another tenant's."""
    if caller.tenant not in (None, kind.tenant):
        raise ForeignTenant(f"job {job_id} is another tenant's. Next: use a key of that tenant")
    return kind


def _held(said: Sequence[Said]) -> list[Held]:
    return [one.held for one in said]
