"""A job: one request to run a task, stored as one row."""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, get_args
from uuid import UUID

from tenure import errors
from tenure.jobs.unique import Unique

#: Faster than json.loads: JSON that PostgreSQL wrote has no surrounding blanks.
_decoded: Final = json.JSONDecoder().raw_decode
#: The exceptions by which a handler says whether to retry.
_TASK_ERRORS: Final = (
    errors.ValidationError, errors.PolicyViolation, errors.PermanentError, errors.DependencyUnavailable,
    errors.InfrastructureFailure, errors.TransientError,
)  # fmt: skip

#: The payload key of a job's own timeout, which has no column. No parameter can have this name.
TIMEOUT: Final = "$timeout"

#: The stages of a run; a failure may name one.
Stage = Literal["fetch", "input", "exec", "output", "commit"]
STAGES: Final[tuple[str, ...]] = get_args(Stage)
#: The maximum length of a stored message and stack, in characters.
_LONGEST_MESSAGE: Final = 8_000
_LONGEST_STACK: Final = 64_000


class Job(NamedTuple):
    """A job as its row was when it was read. JSON is decoded on access."""

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
    #: When its handler was first seen blocking the worker's event loop.
    blocked_at: datetime | None
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
        """The handler's return value, or None."""
        return None if self.result_json is None else json.loads(self.result_json)

    @property
    def checkpoint(self) -> Any:
        """The last saved checkpoint, or None."""
        return None if self.checkpoint_json is None else json.loads(self.checkpoint_json)

    @property
    def pending(self) -> Any:
        """The failure that ends the job after its effects are compensated; None: the job is to be run."""
        return None if self.pending_json is None else json.loads(self.pending_json)

    @property
    def trace_id(self) -> str:
        """The trace id given at enqueue, or one derived from the job's id."""
        return self.given_trace_id or derive_id(self.installation, "trace", self.id)

    @property
    def correlation_id(self) -> str:
        """The correlation id given at enqueue, or one derived from the job's id."""
        return self.given_correlation_id or derive_id(self.installation, "correlation", self.id)

    @property
    def held(self) -> Held:
        """The lease of this job as its holder shows it; raises ValueError if the job is not held."""
        if self.lease_token is None:
            raise ValueError(f"job {self.id} is {self.state} and is not held")
        return Held(self.id, self.claims, self.lease_token, self.contract, self.version)


@dataclass(slots=True, unsafe_hash=True)  # not frozen: that would cost every job a microsecond
class Held:
    """A holder's proof that it holds a job: (job, claims, token)."""

    id: int
    claims: int
    token: UUID
    contract: str
    version: str


class DatasetUse(NamedTuple):
    """A dataset that a job reads or writes, by name in the job's tenant."""

    name: str
    #: Its generation; None: the one that is current when the job is made, or that of the job's flow.
    generation: int | None = None
    #: Of a written one, the shape of the rows that the code writes: the current generation is meant if it has this
    #: shape, else the newest one that has it. None: any shape.
    shape_json: str | None = None


@dataclass(slots=True)
class NewJob:
    """A job to enqueue; None means the default of its contract and its type."""

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
    #: Whether a NOTIFY is sent; False: workers find the job by polling.
    notify: bool = True
    #: How the job is unique among others of its type; None: it is not.
    unique: Unique | None = None
    #: When the job is cancelled unless it has begun: a time, or milliseconds after the enqueue.
    expires_at: datetime | None = None
    expires_ms: int | None = None
    #: The datasets that it reads and writes: their generations are pinned when the job is made.
    reads: tuple[DatasetUse, ...] = ()
    writes: tuple[DatasetUse, ...] = ()

    @property
    def uses_datasets(self) -> bool:
        """Whether it reads or writes datasets."""
        return bool(self.reads or self.writes)

    @property
    def expires(self) -> bool:
        """Whether it expires."""
        return self.expires_at is not None or self.expires_ms is not None


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure as its reporter saw it: facts only, no delay and no decision."""

    message: str
    type: str = "Exception"
    code: str | None = None
    stack: str | None = None
    stage: str | None = None
    retryable: bool | None = None
    #: The version of the application whose worker it happened in.
    release: str | None = None

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return the failure for an exception, with whether its class asks for a retry.

        The type is the name of the exception's class, the code its `code` attribute. For a subclass of PermanentError
        and the like, the type is Tenure's class, which contracts judge, and the code is the subclass's name.
        """
        class_name, code = type(error).__name__, read_text_attribute(error, "code")
        task_error = next((known for known in _TASK_ERRORS if issubclass(type(error), known)), None)
        if task_error is not None and code == task_error.code and class_name != task_error.__name__:
            code = class_name
        return cls(
            _storable(_message(error), _LONGEST_MESSAGE) or class_name,
            type=class_name if task_error is None else task_error.__name__,
            code=code,
            stack=_storable(_stack(error), _LONGEST_STACK),
            retryable=None if task_error is None else issubclass(task_error, errors.TransientError),
        )

    def facts(self, *, in_ascii: bool = False) -> Mapping[str, Any]:
        """Return the known fields as JSON values; in ASCII for a database whose encoding has no other characters."""
        limits = {
            "type": 200,
            "message": _LONGEST_MESSAGE,
            "code": 200,
            "stack": _LONGEST_STACK,
            "stage": 200,
            "release": 200,
        }
        encoding = "ascii" if in_ascii else "utf-8"
        texts = {name: _storable(getattr(self, name), longest, encoding) for name, longest in limits.items()}
        return {name: value for name, value in (*texts.items(), ("retryable", self.retryable)) if value is not None}


def _storable(text: str | None, longest: int, encoding: str = "utf-8") -> str | None:
    """Escape characters that cannot be stored and cut the middle of a long text, so every failure can be stored."""
    if text is None:
        return None
    escaped = _shortened(text, longest).replace("\x00", "\\x00").encode(encoding, "backslashreplace").decode()
    return _shortened(escaped, longest)


def _shortened(text: str, longest: int) -> str:
    half = (longest - 3) // 2
    return text if len(text) <= longest else f"{text[:half]} … {text[-half:]}"


def read_text_attribute(error: BaseException, name: str) -> str | None:
    """Return a string attribute of an exception; None if it is not a string or raises."""
    try:
        value = getattr(error, name, None)
        return str.__str__(value) if isinstance(value, str) else None
    except BaseException:  # application code may raise anything
        return None


def _message(error: BaseException) -> str:
    """Return the message of an exception, also if its __str__ raises."""
    try:
        return str.__str__(str(error))
    except BaseException:  # application code may raise anything
        return f"{type(error).__name__}: its text cannot be shown, because its __str__ raises"


def _stack(error: BaseException) -> str:
    """Return the traceback of an exception; if formatting raises, where it was raised and its type."""
    try:
        return "".join(traceback.format_exception(error))
    except BaseException:  # application code raises, or the exceptions are nested too deeply
        raised = BaseException.__getattribute__(error, "__traceback__")
        return f"{''.join(traceback.format_tb(raised))}{type(error).__name__}: {_message(error)}\n"


UPKEEP: Final = "tenure:upkeep"


def derive_id(installation: str, kind: str, job_id: int) -> str:
    """Return an id derived from the job's id: the same in Python and in SQL (`tenure.made_id`)."""
    return hashlib.md5(f"{installation}:{kind}:{job_id}".encode(), usedforsecurity=False).hexdigest()
