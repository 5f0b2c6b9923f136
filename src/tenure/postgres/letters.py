"""Dead letters: look at them, run one again as a new job, or discard it, with two people where the contract says so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from tenure import intake
from tenure.around import SetAside
from tenure.errors import BadInput, Refused
from tenure.postgres.engine import Engine, ask
from tenure.postgres.repeats import Use, once
from tenure.postgres.statement import Plan, statement

STATUSES = ("open", "requeued", "discarded")


class Letter(NamedTuple):
    """A job that was set aside, and what was decided about it."""

    id: int
    job_id: int
    contract: str
    tenant_id: str
    type: str
    reason_code: str
    stage: str | None
    last_error_json: str
    counter: int
    claims: int
    last_owner: str | None
    last_lease_expires_at: datetime | None
    correlation_id: str
    trace_id: str
    payload_json: str | None
    status: str
    failed_at: datetime
    created_at: datetime
    updated_at: datetime
    requeued_as: int | None
    requeued_by: str | None
    discard_reason: str | None
    discard_asked_by: str | None
    discard_asked_at: datetime | None
    discard_approved_by: str | None
    discard_approved_at: datetime | None

    @property
    def payload(self) -> Any:
        """The job's arguments; None where they are not kept any more."""
        return None if self.payload_json is None else json.loads(self.payload_json)

    @property
    def last_error(self) -> Any:
        """The failure that ended the job."""
        return json.loads(self.last_error_json)

    def in_short(self) -> SetAside:
        """What a sentence about the job needs of it."""
        return SetAside(
            self.id, self.status, self.reason_code, self.requeued_as, self.discard_asked_by, self.discard_approved_by,
            self.discard_reason,
        )  # fmt: skip


class Letters:
    """The verbs on dead letters; `store.letters`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def show(self, letter_id: int) -> Letter:
        """One dead letter."""
        return await self._one({"id": intake.whole("dead letter", letter_id, 1, intake.MAX_ID)})

    async def of_job(self, job_id: int) -> Letter:
        """The dead letter of a job."""
        return await self._one({"job_id": intake.whole("id", job_id, 1, intake.MAX_ID)})

    async def find(self, job_id: int) -> Letter | None:
        """The dead letter of a job, if it has one."""
        rows = await self._engine.run(lambda: ask("letter", {"job_id": job_id}))
        return Letter._make(rows[0]) if rows else None

    async def list(
        self,
        *,
        contract: str | None = None,
        tenant_id: str | None = None,
        status: str | None = None,
        limit: int = 50,
        after: int | None = None,
    ) -> Sequence[Letter]:
        """Dead letters, newest first; `after` is the id of the last one that was seen."""
        if contract is not None:
            await self._engine.machine(contract)  # a misspelt name is said to be one, not an empty list
        if tenant_id is not None:
            intake.name("tenant_id", tenant_id)
        if status not in (None, *STATUSES):
            raise BadInput(f"a dead letter is {', '.join(STATUSES)}, not {status!r}")
        values = {
            "contract": contract, "tenant": tenant_id, "status": status,
            "limit": intake.whole("limit", limit, 1, intake.MAX_BATCH),
            "after": None if after is None else intake.whole("after", after, 1, intake.MAX_ID),
        }  # fmt: skip
        return [Letter._make(row) for row in await self._engine.run(lambda: ask("letters", values))]

    async def requeue(self, letter_id: int, *, actor: str, key: str | None = None) -> int:
        """Run it again: the id of the new job, which points back to it. A letter is requeued once."""
        letter = await self.show(letter_id)
        machine = await self._engine.machine(letter.contract)
        contract = machine.contract
        values = {
            "id": letter_id, "version": contract.version, "state": contract.initial,
            "counter": contract.counter.initial, "actor": intake.name("actor", actor),
        }  # fmt: skip
        use = _use(letter, key, "requeue", actor)

        def requeue() -> Plan[list[int | Refused]]:
            ((status, made),) = yield statement("requeue", values)
            if made is None:
                why = f"dead letter {letter_id} is {status} already"
                return [Refused(letter.job_id, why, code="DLQ_REQUEUE_CONFLICT")]
            if contract.wakeup == "pointer":
                yield statement("wake", {"ids": [made]})
            return [made]

        (made,) = await self._engine.extending(lambda: once(use, requeue, whole=True))
        if isinstance(made, Refused):
            raise made
        self._engine.wakeups.want([(contract.name, "")])
        return int(made)

    async def request_discard(self, letter_id: int, *, person: str, reason: str, key: str | None = None) -> Letter:
        """Ask that it be thrown away, with a reason; done at once where the contract wants no second person."""
        intake.name("reason", reason)
        return await self._discard(letter_id, person, key, asks=True, reason=reason)

    async def approve_discard(self, letter_id: int, *, person: str, key: str | None = None) -> Letter:
        """Agree that it be thrown away; never the one who asked."""
        return await self._discard(letter_id, person, key, asks=False, reason=None)

    async def _discard(self, letter_id: int, person: str, key: str | None, *, asks: bool, reason: str | None) -> Letter:
        letter = await self.show(letter_id)
        reviewers = (await self._engine.machine(letter.contract)).contract.dead_letters.reviewers
        values = {
            "id": letter_id, "person": intake.name("person", person), "person_key": intake.person_key(person),
            "asks": asks, "reason": reason, "reviewers": reviewers,
        }  # fmt: skip
        use = _use(letter, key, "request_discard" if asks else "approve_discard", person, reason)

        def discard() -> Plan[list[str | Refused]]:
            ((refusal, status, asked_by, _),) = yield statement("discard", values)
            return [status if refusal is None else _refusal(letter, refusal, status, asked_by)]

        (answer,) = await self._engine.run(lambda: once(use, discard))
        if isinstance(answer, Refused):
            raise answer
        return await self.show(letter_id)

    async def _one(self, which: dict[str, int]) -> Letter:
        rows = await self._engine.run(lambda: ask("letter", which))
        if not rows:
            named = ", ".join(f"{name} {value}" for name, value in which.items())
            raise Refused(which.get("job_id"), f"there is no dead letter with {named}", code="DLQ_ITEM_NOT_FOUND")
        return Letter._make(rows[0])


def _refusal(letter: Letter, refusal: str, status: str, asked_by: str | None) -> Refused:
    asking = f"tenure dlq discard {letter.id} --reason TEXT --person NAME"
    why = {
        "closed": f"dead letter {letter.id} is {status} already",
        "asked": f"{asked_by} has asked for it already; another person must approve",
        "unasked": f"nobody has asked for it yet. Next: {asking}",
        "same": f"{asked_by} asked for it; another person must approve",
    }[refusal]
    code = "DLQ_DISCARD_CONFLICT" if refusal == "closed" else "APPROVAL_REQUIRED"
    return Refused(letter.job_id, why, code=code)


def _use(letter: Letter, key: str | None, verb: str, *body: Any) -> Use | None:
    return None if key is None else Use(letter.tenant_id, intake.name("key", key), verb, letter.job_id, body)
