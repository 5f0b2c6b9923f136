"""A job: one request to run a task, one row."""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, get_args
from uuid import UUID

from tenure.errors import (
    DependencyUnavailable,
    InfrastructureFailure,
    PermanentError,
    PolicyViolation,
    TransientError,
    ValidationError,
)

#: What PostgreSQL wrote needs no search for blanks around it.
_decoded: Final = json.JSONDecoder().raw_decode
#: What a handler raises to say whether to try again.
_KINDS: Final = (
    ValidationError, PolicyViolation, PermanentError, DependencyUnavailable, InfrastructureFailure, TransientError,
)  # fmt: skip

#: The stages of a run, of which a failure may name one.
Stage = Literal["fetch", "input", "exec", "output", "commit"]
STAGES: Final[tuple[str, ...]] = get_args(Stage)


class Job(NamedTuple):
    """A job as its row was when it was read; JSON is decoded when it is asked for."""

    id: int
    contract: str
    version: str
    state: str
    role: str
    queue: str
    type: str
    tenant_id: str
    priority: int
    claims: int
    raises: int
    counter: int
    max_attempts: int
    payload_json: str
    lease_owner: str | None
    lease_expires_at: datetime | None
    due_at: datetime | None
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    cancel_requested_at: datetime | None
    given_trace_id: str | None
    given_correlation_id: str | None
    idempotency_key: str | None
    origin_letter: int | None
    last_error_json: str | None
    result_json: str | None
    checkpoint_json: str | None
    pending_json: str | None
    lease_token: UUID | None
    installation: str

    @property
    def payload(self) -> Any:
        """The arguments."""
        return _decoded(self.payload_json)[0]

    @property
    def last_error(self) -> Any:
        """The last failure, or None."""
        return None if self.last_error_json is None else json.loads(self.last_error_json)

    @property
    def result(self) -> Any:
        """What the handler returned, or None."""
        return None if self.result_json is None else json.loads(self.result_json)

    @property
    def checkpoint(self) -> Any:
        """What the handler last saved, or None."""
        return None if self.checkpoint_json is None else json.loads(self.checkpoint_json)

    @property
    def pending(self) -> Any:
        """The failure that ends the job as soon as its effects are undone, or None: then there is nothing to run."""
        return None if self.pending_json is None else json.loads(self.pending_json)

    @property
    def trace_id(self) -> str:
        """The trace id given at enqueue, or the one made from the job's id."""
        return self.given_trace_id or made_id(self.installation, "trace", self.id)

    @property
    def correlation_id(self) -> str:
        """The correlation id given at enqueue, or the one made from the job's id."""
        return self.given_correlation_id or made_id(self.installation, "correlation", self.id)

    @property
    def held(self) -> Held:
        """The lease on this job, as its holder names it; raises where nobody holds it."""
        if self.lease_token is None:
            raise ValueError(f"job {self.id} is {self.state}: nobody holds it")
        return Held(self.id, self.claims, self.lease_token, self.contract, self.version)


@dataclass(slots=True, unsafe_hash=True)  # not frozen: that would cost every job a microsecond
class Held:
    """What a holder shows to prove that a job is still its own: (job, claims, token)."""

    id: int
    claims: int
    token: UUID
    contract: str
    version: str


@dataclass(slots=True)
class NewJob:
    """A job to be made; None means the default of its contract and its type."""

    type: str
    payload: Any = field(default_factory=dict)
    contract: str = "standard"
    version: str | None = None
    queue: str = "default"
    tenant_id: str = "default"
    priority: int = 5
    max_attempts: int | None = None
    run_at: datetime | None = None
    delay_ms: int | None = None
    key: str | None = None
    trace_id: str | None = None
    correlation_id: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong, in the words of whoever saw it. Facts only: no delay, no decision."""

    message: str
    type: str = "Exception"
    code: str | None = None
    stack: str | None = None
    stage: str | None = None
    retryable: bool | None = None

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The failure that an exception is, with what its kind says of trying again.

        Its class's name is the type, its `code` attribute, if any, the code. Of an application's own kind of
        PermanentError and the like, the type is ours, by which contracts judge, and its own name the code.
        """
        own, code = type(error).__name__, getattr(error, "code", None)
        kind = next((kind for kind in _KINDS if isinstance(error, kind)), None)
        if kind is not None and code == kind.code and own != kind.__name__:
            code = own
        return cls(
            str(error) or own,
            type=own if kind is None else kind.__name__,
            code=code if isinstance(code, str) else None,
            stack="".join(traceback.format_exception(error)),
            retryable=None if kind is None else issubclass(kind, TransientError),
        )

    def facts(self) -> Mapping[str, Any]:
        """The failure as JSON values, without what is not known."""
        texts = {
            "type": _storable(self.type, 200), "message": _storable(self.message, 8_000),
            "code": _storable(self.code, 200), "stack": _storable(self.stack, 64_000),
            "stage": _storable(self.stage, 200), "retryable": self.retryable,
        }  # fmt: skip
        return {name: value for name, value in texts.items() if value is not None}


def _storable(text: str | None, longest: int) -> str | None:
    """A failure must always be reportable: what cannot be stored is escaped, what is too long loses its middle."""
    if text is None:
        return None
    if len(text) > longest:
        text = f"{text[: longest // 2]} … {text[-longest // 2 :]}"
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()


UPKEEP: Final = "tenure:upkeep"


def made_id(installation: str, kind: str, job_id: int) -> str:
    """The id that nobody gave: the same in Python and in SQL (`tenure.made_id`)."""
    return hashlib.md5(f"{installation}:{kind}:{job_id}".encode(), usedforsecurity=False).hexdigest()
