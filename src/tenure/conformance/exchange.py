"""What a worker sent and was answered: exchanges, and the claims and reports in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

#: The verbs after which the holder has nothing more to say.
FINAL_VERBS: Final = frozenset({"succeed", "fail", "snooze", "hand-back", "cancelled"})
_HOLDER_PATH: Final = re.compile(
    r"/api/v1/jobs/([0-9]+)/(start|heartbeat|progress|checkpoint|effect|undone|compensated|compensation-failed|"
    + "|".join(FINAL_VERBS) + ")"
)  # fmt: skip
_BATCHES: Final = {"/api/v1/finishes": "finishes", "/api/v1/starts": "starts", "/api/v1/heartbeats": "heartbeats"}
_TASK_VERBS: Final = {"Completed": "succeed", "Failed": "fail", "Canceled": "cancelled"}
_NO_FACTS: Final = frozenset({
    "id", "task_id", "verb", "claims", "attempt", "lease_token", "idempotency_key"
})  # fmt: skip


@dataclass(slots=True)
class Exchange:
    """One request of the worker. Times are those of the proxy's monotonic clock."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any
    asked_at: float
    #: 0 until there is an answer.
    status: int = 0
    answer: Any = None
    #: When the worker could read the answer; None: it got none.
    answered_at: float | None = None

    @property
    def verbs(self) -> frozenset[str]:
        """What the request is: `claim`, `heartbeat`, `succeed`, …"""
        if self.path in ("/api/v1/claims", "/internal/task-claim"):
            return frozenset({"claim"})
        return frozenset(report.verb for report in self.reports())

    def claim(self) -> Claim | None:
        """The claim that this request is, with what it won so far."""
        if self.path == "/internal/task-claim":
            won = [Hold(_text(_of(self.answer, "task"), "task_id"), _text(self.answer, "lease_token"))]
            is_won = _of(self.answer, "status") == "Claimed"
            key = self.headers.get("idempotency-key")
            return Claim(key, _of(self.body, "types"), won if is_won else [])
        if self.path != "/api/v1/claims":
            return None
        won = [Hold(_text(_of(one, "job"), "id"), _text(one, "lease_token")) for one in _list(self.answer, "claims")]
        return Claim(_of(self.body, "claim_key"), _of(self.body, "types"), won)

    def reports(self) -> Iterator[Report]:
        """Each call about one job in this request."""
        if self.method != "POST":
            return
        if found := _HOLDER_PATH.fullmatch(self.path):
            job_id, verb = found.groups()
            yield self._report(job_id, verb, self.body, self.status, self.answer, self.headers.get("idempotency-key"))
        elif self.path == "/internal/heartbeat":
            yield self._report(_text(self.body, "task_id"), "heartbeat", self.body, self.status, self.answer)
        elif self.path == "/internal/task-complete":
            verb = _TASK_VERBS.get(_text(self.body, "status"), "?")
            # A completion of document 001 needs no key: the attempt is one.
            yield self._report(_text(self.body, "task_id"), verb, self.body, self.status, self.answer, "the attempt")
        elif (field := _BATCHES.get(self.path)) is not None:
            items, answers = _list(self.body, field), _list(self.answer, "answers")
            for number, item in enumerate(items):
                verb = _text(item, "verb") or field.removesuffix("s")
                answer = answers[number] if number < len(answers) else self.answer
                status = 409 if self.status == 200 and _of(answer, "error") else self.status
                yield self._report(_text(item, "id"), verb, item, status, answer)

    def _report(self, job_id: str, verb: str, body: Any, status: int, answer: Any, key: str | None = None) -> Report:
        fields = body if isinstance(body, dict) else {}
        facts = {name: value for name, value in fields.items() if name not in _NO_FACTS and value is not None}
        error = _of(answer, "error")
        return Report(
            Hold(job_id, _text(body, "lease_token")), verb, key or _of(body, "idempotency_key"), facts, status,
            _text(error, "code"), _of(error, "retryable") is True, _of(answer, "cancel_requested") is True, self,
        )  # fmt: skip


class Hold(NamedTuple):
    """A job under one lease."""

    job_id: str
    lease_token: str


class Claim(NamedTuple):
    """A claim: its key, the types it asked for, and what it won."""

    key: Any
    types: Any
    won: list[Hold]


class Report(NamedTuple):
    """A call about one job that the worker holds, or thinks it holds."""

    hold: Hold
    verb: str
    key: Any
    facts: Mapping[str, Any]
    status: int
    code: str
    retryable: bool
    cancel_requested: bool
    exchange: Exchange

    @property
    def is_accepted(self) -> bool:
        """Whether the dispatcher accepted it, as far as the worker can know."""
        return self.exchange.answered_at is not None and self.status in (200, 201)

    @property
    def is_lost_lease(self) -> bool:
        """Whether the worker was told that it holds the job no more."""
        return self.exchange.answered_at is not None and self.status in (404, 409) and not self.retryable

    def asked_after(self, earlier: Report) -> bool:
        """Whether it was sent when the worker had the other one's answer."""
        return earlier.exchange.answered_at is not None and self.exchange.asked_at > earlier.exchange.answered_at


def _of(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _text(value: Any, name: str) -> str:
    return str(_of(value, name) or "")


def _list(value: Any, name: str) -> list[Any]:
    found = _of(value, name)
    return found if isinstance(found, list) else []
