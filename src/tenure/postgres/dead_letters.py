"""Dead letters: read them, requeue one as a new job, or discard it, with two people if the contract requires it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from tenure.errors import BadInput, Refused
from tenure.jobs import validation
from tenure.jobs.formats import ids_to_text
from tenure.jobs.operation import PayloadChanges
from tenure.jobs.search import STATUSES, PayloadFilter
from tenure.jobs.why import DeadLetterSummary
from tenure.postgres.engine import EngineUser, only_answer
from tenure.postgres.idempotency import idempotent_call, run_once
from tenure.postgres.reruns import EndedJob, PayloadEdit, run_again
from tenure.postgres.search import MAX_PAGE, SCAN_DOCUMENTS, filter_values
from tenure.postgres.statement import Plan, statement


class DeadLetter(NamedTuple):
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
        """The job's arguments; None if they are no longer stored."""
        return None if self.payload_json is None else json.loads(self.payload_json)

    @property
    def last_error(self) -> Any:
        """The failure that ended the job."""
        return json.loads(self.last_error_json)

    def fields(self) -> dict[str, Any]:
        """Return the letter as JSON shows it: ids as texts, documents as values."""
        fields = ids_to_text(self._asdict(), "id", "job_id", "requeued_as")
        del fields["payload_json"], fields["last_error_json"]
        return {**fields, "payload": self.payload, "last_error": self.last_error}

    def summary(self) -> DeadLetterSummary:
        """Return the fields that explain the job's state."""
        return DeadLetterSummary(
            self.id, self.status, self.reason_code, self.requeued_as, self.discard_asked_by, self.discard_approved_by,
            self.discard_reason,
        )  # fmt: skip


class LetterPage(NamedTuple):
    """Dead letters that match, newest first."""

    letters: Sequence[DeadLetter]
    #: The `after` of the next page; None at the end.
    next: int | None
    #: The bound on rows ended the page before it was full: there may be more letters.
    stopped: bool


class DeadLetters(EngineUser):
    """Operations on dead letters; `store.letters`."""

    async def show(self, letter_id: int) -> DeadLetter:
        """Return a dead letter; refuses an unknown id."""
        validation.check_integer("dead letter", letter_id, 1, validation.MAX_ID)
        if (letter := await self._engine.run(lambda: read_dead_letter(id=letter_id))) is None:
            raise Refused(None, f"there is no dead letter with id {letter_id}", code="DLQ_ITEM_NOT_FOUND")
        return letter

    async def of_job(self, job_id: int) -> DeadLetter:
        """Return the dead letter of a job; refuses a job without one."""
        validation.check_integer("id", job_id, 1, validation.MAX_ID)
        if (letter := await self.find(job_id)) is None:
            raise Refused(job_id, f"there is no dead letter with job_id {job_id}", code="DLQ_ITEM_NOT_FOUND")
        return letter

    async def find(self, job_id: int) -> DeadLetter | None:
        """Return the dead letter of a job, or None."""
        return await self._engine.run(lambda: read_dead_letter(job_id=job_id))

    async def list(
        self,
        *,
        contract: str | None = None,
        tenant_id: str | None = None,
        status: str | None = None,
        limit: int = 50,
        after: int | None = None,
    ) -> Sequence[DeadLetter]:
        """Return dead letters, newest first; `after` is the id of the last one of the page before."""
        if contract is not None:
            await self._engine.bound_contract(contract)  # refuses an unknown contract
        if tenant_id is not None:
            validation.check_name("tenant_id", tenant_id)
        if status not in (None, *STATUSES):
            raise BadInput(f"a dead letter is {', '.join(STATUSES)}, not {status!r}")
        rows = await self._engine.ask(
            "list_dead_letters", contract=contract, tenant=tenant_id, status=status,
            limit=validation.check_integer("limit", limit, 1, validation.MAX_BATCH),
            after=None if after is None else validation.check_integer("after", after, 1, validation.MAX_ID),
        )  # fmt: skip
        return [DeadLetter._make(row) for row in rows]

    async def search(
        self,
        *,
        status: str | None = None,
        type: str | None = None,
        queue: str | None = None,
        tenant_id: str | None = None,
        contract: str | None = None,
        reason: str | None = None,
        group: str | None = None,
        release: str | None = None,
        error: str | None = None,
        worker: str | None = None,
        payload: Sequence[PayloadFilter] = (),
        older_s: float | None = None,
        younger_s: float | None = None,
        limit: int = 50,
        after: int | None = None,
        documents: bool = True,
    ) -> LetterPage:
        """Find dead letters, newest first; `after` is the `next` of the page before.

        Without `documents` the payloads and errors of those on the page are not read.
        """
        validation.check_integer("limit", limit, 1, MAX_PAGE)
        if contract is not None:
            await self._engine.bound_contract(contract)  # refuses an unknown contract
        if status not in (None, *STATUSES):
            raise BadInput(f"a dead letter is {', '.join(STATUSES)}, not {status!r}")
        if release is not None:
            validation.check_name("release", release)
        values = {
            "status": status, "contract": contract, "release": release,
            **filter_values(
                type=type, queue=queue, tenant_id=tenant_id, older_s=older_s, younger_s=younger_s, reason=reason,
                group=group, error=error, payload=payload, worker=worker,
            ),
        }  # fmt: skip
        # What an index answers alone needs no more rows than the page, and one that tells whether there is another.
        by_index = {"group"} if group is not None else {"status"} if status == "open" else set()
        if status == "open" and contract is not None and tenant_id is not None and group is None:
            by_index |= {"contract", "tenant"}
        filtered = any(value is not None for name, value in values.items() if name not in by_index)
        scan = max(SCAN_DOCUMENTS, limit + 1) if filtered else limit + 1
        begin = validation.MAX_ID if after is None else validation.check_integer("after", after, 1, validation.MAX_ID)
        options = {"limit": limit + 1, "scan": scan, "with_documents": documents, "after": begin}
        rows = await self._engine.ask("search_dead_letters", **values, **options)
        looked, lowest = rows[0][:2]
        letters = [DeadLetter._make(row[2:]) for row in rows if row[2] is not None]
        if len(letters) > limit:
            return LetterPage(letters[:limit], letters[limit - 1].id, stopped=False)
        stopped = looked == scan
        return LetterPage(letters, lowest if stopped else None, stopped)

    async def requeue(
        self,
        letter_id: int,
        *,
        actor: str,
        key: str | None = None,
        payload: Any = None,
        changes: PayloadChanges | None = None,
        again: bool = False,
    ) -> int:
        """Enqueue a new job from a dead letter, linked to it; returns its id. A letter is requeued once.

        The job gets the payload as it was, or `payload`, or with the values of `changes` at their paths. With `again`
        the newest job that ran the letter's job again is run again, when it has finished.
        """
        letter = await self.show(letter_id)
        ended = EndedJob(letter.job_id, letter.contract, letter.tenant_id, letter_id)
        edit = PayloadEdit(payload, changes)
        return await run_again(self._engine, ended, actor, key, edit, self._max_bytes, again=again)

    async def request_discard(self, letter_id: int, *, person: str, reason: str, key: str | None = None) -> DeadLetter:
        """Request a discard, with a reason; it is done at once if the contract needs no second person."""
        validation.check_name("reason", reason)
        return await self._discard("request_discard", letter_id, person, key, reason)

    async def approve_discard(self, letter_id: int, *, person: str, key: str | None = None) -> DeadLetter:
        """Approve a discard; refuses the person who requested it."""
        return await self._discard("approve_discard", letter_id, person, key, None)

    async def _discard(self, verb: str, letter_id: int, person: str, key: str | None, reason: str | None) -> DeadLetter:
        letter = await self.show(letter_id)
        validation.check_name("person", person)
        reviewers = (await self._engine.bound_contract(letter.contract)).contract.dead_letters.reviewers
        call = idempotent_call(letter.tenant_id, key, verb, letter.job_id, person, reason)
        asks = verb == "request_discard"

        def discard() -> Plan[list[str | Refused]]:
            letters = {letter.id: letter.job_id}
            done = yield from discard_plan(letters, person=person, asks=asks, reviewers=reviewers, reason=reason)
            return list(done.values())

        only_answer(await self._engine.run(lambda: run_once(call, discard)))
        return await self.show(letter_id)


def discard_plan(
    letters: Mapping[int, int], *, person: str, asks: bool, reviewers: int, reason: str | None
) -> Plan[dict[int, str | Refused]]:
    """Request the discard of dead letters (with their jobs), or approve it; returns each status before, or refusal."""
    values = {
        "ids": sorted(letters), "person": person, "person_key": validation.normalize_person(person), "asks": asks,
        "reason": reason, "reviewers": reviewers,
    }  # fmt: skip
    rows = yield statement("discard_dead_letter", values)
    return {
        letter_id: _refusal(letter_id, letters[letter_id], refusal, status, asked_by) if refusal else str(status)
        for letter_id, refusal, status, asked_by in rows
    }


def read_dead_letter(**which: int) -> Plan[DeadLetter | None]:
    """Read a dead letter by its `id` or `job_id`; None if there is none."""
    rows = yield statement("read_dead_letter", which)
    return DeadLetter._make(rows[0]) if rows else None


def _refusal(letter_id: int, job_id: int, refusal: str, status: str, asked_by: str | None) -> Refused:
    command = f"tenure dlq discard {letter_id} --reason TEXT --person NAME"
    why = {
        "closed": f"dead letter {letter_id} is {status} already",
        "asked": f"{asked_by} has already requested the discard; another person must approve",
        "unasked": f"no discard was requested yet. Next: {command}",
        "same": f"{asked_by} requested the discard; another person must approve",
    }[refusal]
    code = "DLQ_DISCARD_CONFLICT" if refusal == "closed" else "APPROVAL_REQUIRED"
    return Refused(job_id, why, code=code)
