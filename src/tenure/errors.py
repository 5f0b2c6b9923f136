"""Every error Tenure raises, as one tree.

    TenureError
    ├── BadInput (also ValueError)      the call was wrong; nothing was written
    │   ├── UnknownContract             no such contract, or no such version of it
    │   ├── NotATestDatabase            tenure.testing was given a database that was not made for tests
    │   └── PayloadTooLarge             over the limit; nothing was written
    ├── Refused                         the database refused the call; nothing was written
    │   ├── JobNotFound
    │   ├── InvalidTransition           the contract has no such hop from this state; has the contract's own code
    │   ├── StaleLease                  the caller does not hold the job (any more); names the holder
    │   ├── NotDue                      the job is ready, but not yet
    │   ├── Busy                        another transaction has locked the row; try again
    │   ├── ScheduleNotFound
    │   ├── ScheduleConflict            the schedule's code, tenant or running job forbids it
    │   ├── FlowNotFound
    │   ├── FlowConflict                the flow's state forbids it
    │   ├── DatasetNotFound             no such dataset, or no such generation of it
    │   ├── DatasetConflict             the generation's state, or the job's pins, forbid it
    │   ├── WaitingForParents           the job is a node of a flow that has not started
    │   ├── RunAgainAlready             another job runs this one again; names it
    │   ├── IdempotencyConflict         the key was used before with another body
    │   └── DuplicateJob                a unique job is in the way; names it
    ├── ContractError
    │   ├── Unsound (also ValueError)   the declaration contradicts itself; says what and where
    │   └── ContractChanged             another machine is registered under this name and version
    ├── SchemaError
    │   ├── SchemaMissing               run `tenure migrate`
    │   ├── SchemaTooNew                this Tenure is older than the database
    │   └── MigrationChanged            an applied migration is not the one in this release
    ├── CannotConnect                   no connection could be opened; nothing was done
    ├── Unavailable                     PostgreSQL could not do it (disk full, cancelled…); nothing was done
    │   └── NotPermitted                the connection's role, or the key, may not do it
    ├── ConnectionLost                  the outcome is unknown; repeat the call with the same key
    ├── MissingExtra (also ImportError) a part of Tenure was used that is not installed; names the command
    ├── DatabaseRequired                no address was given, and an embedded PostgreSQL is refused here
    ├── EmbeddedError                   the embedded PostgreSQL could not be found, made or started
    │   ├── NoBinaries                  no PostgreSQL programs (defined in tenure.embedded)
    │   └── StartFailed                 with the end of the server's log (defined in tenure.embedded)
    ├── JobFailed                       the awaited job did not succeed
    ├── FlowFailed                      the awaited flow did not succeed; says which nodes
    ├── ResultDoesNotFit                the awaited result is not what the task's annotation says
    └── TaskError                       raised by handlers to classify a failure
        ├── TransientError              try again
        │   ├── DependencyUnavailable   another service that the job needs did not answer
        │   └── InfrastructureFailure   the machine or process that ran the job failed
        ├── PermanentError              do not
        │   └── PolicyViolation         a rule forbids the job
        └── ValidationError             the input was wrong, so do not

Each class has a `code` for programs. The message says what happened and what to do next. An error that a dispatcher
reports is raised here as the same class (`error_from_code`).
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from datetime import datetime
from importlib.util import find_spec
from typing import Any, ClassVar, Final


class TenureError(Exception):
    """The base class of all errors of Tenure."""

    code: ClassVar[str] = "E-TENURE"


class BadInput(TenureError, ValueError):
    """The call itself was wrong; nothing was written."""

    code = "E-BAD-INPUT"


class UnknownContract(BadInput):
    """No contract of that name, or no such version of it, is registered."""

    code = "E-UNKNOWN-CONTRACT"


class PayloadTooLarge(BadInput):
    """A payload, result or error is over the configured size."""

    code = "E-PAYLOAD-TOO-LARGE"


class NotATestDatabase(BadInput):
    """`tenure.testing` was given a database that was not made for tests; nothing was changed."""

    code = "E-NOT-A-TEST-DATABASE"


class Refused(TenureError):
    """The database refused the call and changed nothing."""

    code = "E-REFUSED"

    def __init__(self, job_id: int | None, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.reason_code = code or self.code

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a refusal without calling its constructor, whose arguments differ per class."""
        return _refusal, (type(self), self.args, self.__dict__)


class JobNotFound(Refused):
    """No job has this id, live or finished."""

    code = "JOB_NOT_FOUND"

    def __init__(self, job_id: int) -> None:
        super().__init__(job_id, f"no job, live or finished, has the id {job_id}. Next: check the id")


class InvalidTransition(Refused):
    """The contract has no such hop from the job's current state."""

    code = "INVALID_TRANSITION"

    def __init__(self, job_id: int, trigger: str, state: str, *, contract: str, code: str) -> None:
        super().__init__(
            job_id,
            f"{code}: job {job_id} is {state}, and contract {contract} has no {trigger} from there. "
            f"Next: tenure jobs events {job_id}",
            code=code,
        )
        self.trigger = trigger
        self.state = state


class StaleLease(Refused):
    """The caller does not hold the job (any more)."""

    code = "LEASE_CONFLICT"

    def __init__(self, job_id: int | None, *, held_by: str | None = None, since: datetime | None = None) -> None:
        holder = f"held by {held_by} since {since:%H:%M:%S}" if held_by and since else "not held by this caller"
        which = "the claim" if job_id is None else f"job {job_id}"
        super().__init__(job_id, f"{which} is {holder}; nothing was stored. Next: drop this work and claim again")
        self.held_by = held_by
        self.since = since


#: The name document 002 gives to a lost lease.
LeaseConflictError = StaleLease


class NotDue(Refused):
    """The job is ready but not yet due."""

    code = "NOT_DUE"

    def __init__(self, job_id: int, due_at: datetime | None) -> None:
        super().__init__(
            job_id, f"job {job_id} is not due before {due_at}. Next: claim it then; tenure jobs why {job_id}"
        )
        self.due_at = due_at


class Busy(Refused):
    """Another transaction has locked the row."""

    code = "BUSY"

    def __init__(self, job_id: int | None) -> None:
        which = "what this call needs" if job_id is None else f"job {job_id}"
        super().__init__(job_id, f"{which} stayed locked by another transaction; nothing was done. Next: try again")


class IdempotencyConflict(Refused):
    """The idempotency key was used before, with another body."""

    code = "IDEMPOTENCY_CONFLICT"

    def __init__(self, key: str, job_id: int | None) -> None:
        super().__init__(
            job_id, f"the key {key!r} was used before with another body (job {job_id}). Next: use a new key"
        )
        self.key = key


class ScheduleNotFound(Refused):
    """No schedule has this name."""

    code = "SCHEDULE_NOT_FOUND"

    def __init__(self, name: str, application: str | None = None) -> None:
        where = "" if application is None else f" of application {application}"
        super().__init__(None, f"there is no schedule {name!r}{where}. Next: tenure schedules list")


class ScheduleConflict(Refused):
    """The schedule cannot be changed or run so: its code declares it, another tenant has it, or its job still runs."""

    code = "SCHEDULE_CONFLICT"

    def __init__(self, message: str) -> None:
        super().__init__(None, message)


class DuplicateJob(Refused):
    """A unique job is in the way of this one, which asked to be refused then; `job_id` is the job in the way."""

    code = "DUPLICATE_JOB"

    def __init__(self, job_id: int, type_: str) -> None:
        super().__init__(
            job_id,
            f"job {job_id} of type {type_} is in the way of this unique job; nothing was made. "
            f"Next: tenure jobs show {job_id}",
        )


class RunAgainAlready(Refused):
    """The job was run again already; `requeued_as` is the job that did it."""

    code = "REQUEUE_CONFLICT"

    def __init__(self, job_id: int, requeued_as: int, *, letter: int | None = None) -> None:
        super().__init__(
            job_id,
            f"{f'job {job_id}' if letter is None else f'dead letter {letter}'} was already run again "
            f"as job {requeued_as}; nothing was made. Next: tenure jobs show {requeued_as}, "
            "and to run that one again say --again (again=True)",
            code=None if letter is None else "DLQ_REQUEUE_CONFLICT",
        )
        self.requeued_as = requeued_as


class FlowNotFound(Refused):
    """No flow has this id, or it was deleted with its jobs."""

    code = "FLOW_NOT_FOUND"

    def __init__(self, flow_id: int) -> None:
        super().__init__(None, f"no flow has the id {flow_id}. Next: tenure flows list")


class FlowConflict(Refused):
    """The flow is in a state that does not allow the call."""

    code = "FLOW_CONFLICT"

    def __init__(self, message: str) -> None:
        super().__init__(None, message)


class DatasetNotFound(Refused):
    """The tenant has no dataset of this name, or the dataset has no such generation."""

    code = "DATASET_NOT_FOUND"

    def __init__(
        self, dataset: str = "", generation: int | None = None, *, generation_id: int = 0, job_id: int | None = None
    ) -> None:
        what = f"dataset {dataset!r}" if generation is None else f"generation {generation} of dataset {dataset!r}"
        hint = f"tenure datasets show {shlex.quote(dataset)}"
        if generation is None:
            hint = "declare it, or tenure datasets list"
        if generation_id:
            what, hint = f"generation of a dataset with the id {generation_id}", "tenure datasets list"
        super().__init__(job_id, f"there is no {what}; nothing was done. Next: {hint}")


class DatasetConflict(Refused):
    """The generation is in a state that does not allow the call, or the job does not write this dataset."""

    code = "DATASET_CONFLICT"

    def __init__(self, message: str, *, job_id: int | None = None) -> None:
        super().__init__(job_id, message)


class WaitingForParents(Refused):
    """The job is a node of a flow and is not made before the nodes that it needs have ended."""

    code = "WAITING_FOR_PARENTS"

    def __init__(self, job_id: int, flow_id: int, node: str, state: str = "waiting") -> None:
        what = "it waits for its parents" if state == "waiting" else f"it is {state}, and has not run"
        super().__init__(
            job_id, f"job {job_id} is node {node!r} of flow {flow_id}: {what}. Next: tenure flows show {flow_id}"
        )
        self.flow_id = flow_id
        self.node = node


class ContractError(TenureError):
    """A contract is wrong, not a job."""

    code = "E-CONTRACT"


class Unsound(ContractError, ValueError):
    """The declaration contradicts itself."""

    code = "E-UNSOUND"

    def __init__(self, contract: str, faults: list[str], declared: object = None) -> None:
        super().__init__(f"contract {contract} is not sound:\n" + "\n".join(f"  - {fault}" for fault in faults))
        self.faults = faults
        #: The declaration, so that the explorer can still show what it leads to.
        self.declared = declared


class ContractChanged(ContractError):
    """Another machine is registered under the same name and version."""

    code = "E-CONTRACT-CHANGED"


class SchemaError(TenureError):
    """The database's schema is not the one that this Tenure needs."""

    code = "E-SCHEMA"


class SchemaMissing(SchemaError):
    """The database has no Tenure schema, or an older one."""

    code = "E-SCHEMA-MISSING"


class SchemaTooNew(SchemaError):
    """The database was migrated by a newer Tenure."""

    code = "E-SCHEMA-TOO-NEW"


class MigrationChanged(SchemaError):
    """A migration that was applied is not the one in this release."""

    code = "E-MIGRATION-CHANGED"


class CannotConnect(TenureError):
    """No connection to the database or the dispatcher could be opened; nothing was done."""

    code = "E-CANNOT-CONNECT"


class Unavailable(TenureError):
    """PostgreSQL reported that it could not execute the call; nothing was done."""

    code = "E-UNAVAILABLE"


class NotPermitted(Unavailable):
    """The database role or the API key does not permit the call; nothing was done."""

    code = "E-NOT-PERMITTED"

    def __init__(self, message: str = "", *, code: str | None = None) -> None:
        super().__init__(message)
        #: The dispatcher's code: AUTH_REQUIRED, AUTH_FORBIDDEN or TENANT_SCOPE_VIOLATION.
        self.reason_code = code or self.code


class ConnectionLost(TenureError):
    """The connection to the database or the dispatcher broke during the call; the outcome is unknown."""

    code = "E-CONNECTION-LOST"


#: The database or the dispatcher cannot be reached.
UNREACHABLE: Final = (CannotConnect, ConnectionLost)


class MissingExtra(TenureError, ImportError):
    """A part of Tenure was used whose libraries are not installed."""

    code = "E-MISSING-EXTRA"


def require_extra(extra: str, what: str, *modules: str) -> None:
    """Refuse with MissingExtra when a library of this extra is not installed; `what` needs it."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise MissingExtra(
            f"{what} needs libraries that are not installed ({', '.join(missing)}). Next: pip install 'tenure[{extra}]'"
        )


class DatabaseRequired(TenureError):
    """No address of a database or dispatcher was given, and an embedded PostgreSQL is refused here."""

    code = "E-DATABASE-REQUIRED"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(
            message
            or "no database is named, and TENURE_REQUIRE_DATABASE=1 or App(embedded=False) refuses an embedded one. "
            "Next: set DATABASE_URL, or TENURE_DISPATCHER_URL to go through a dispatcher"
        )


class EmbeddedError(TenureError):
    """The embedded PostgreSQL could not be found, made or started."""

    code = "E-EMBEDDED"


class JobFailed(TenureError):
    """The awaited job ended without success."""

    code = "E-JOB-FAILED"

    def __init__(self, job_id: int, state: str, error: Any) -> None:
        reason = f": {error.get('type')}: {error.get('message')}" if isinstance(error, dict) else ""
        super().__init__(f"job {job_id} ended {state}{reason}. Next: tenure jobs show {job_id}")
        self.job_id = job_id
        self.state = state
        self.error = error


class FlowFailed(TenureError):
    """The awaited flow, or the awaited node of it, ended without success."""

    code = "E-FLOW-FAILED"

    def __init__(self, flow_id: int, name: str, state: str, nodes: Mapping[str, str]) -> None:
        shown = [f"{node}: {how}" for node, how in list(nodes.items())[:3]]
        more = [f"{len(nodes) - 3} more"] if len(nodes) > 3 else []
        which = f" ({', '.join([*shown, *more])})" if nodes else ""
        super().__init__(f"flow {flow_id} ({name}) ended {state}{which}. Next: tenure flows show {flow_id}")
        self.flow_id = flow_id
        self.state = state
        #: Node → how it ended, of those that ended badly.
        self.nodes = dict(nodes)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it without calling its constructor, which makes the message."""
        return _refusal, (type(self), self.args, self.__dict__)


class ResultDoesNotFit(TenureError):
    """The awaited job succeeded, and its stored result does not fit the return annotation of its task."""

    code = "E-RESULT-DOES-NOT-FIT"

    def __init__(self, job_id: int, task: str, place: str, reason: str) -> None:
        super().__init__(
            f"the result{place} of job {job_id} does not fit the return annotation of task {task!r}: {reason}. "
            f"Next: read the stored JSON as (await app.job({job_id})).result, or correct the annotation"
        )
        self.job_id = job_id
        #: Where in the result, as in `.lines[2].price`; empty for the whole of it.
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it without calling its constructor, which makes the message."""
        return _refusal, (type(self), self.args, self.__dict__)


class TaskError(TenureError):
    """Base class of the errors by which a handler classifies its failure."""

    code = "E-TASK"


class TransientError(TaskError):
    """The failure may be temporary: retry while the budget lasts."""

    code = "E-TRANSIENT"


class DependencyUnavailable(TransientError):
    """Another service that the job needs did not answer: retry while the budget lasts."""

    code = "E-DEPENDENCY"


class InfrastructureFailure(TransientError):
    """The machine or the process that ran the job failed: retry while the budget lasts."""

    code = "E-INFRASTRUCTURE"


class PermanentError(TaskError):
    """A retry would fail too: end the job now."""

    code = "E-PERMANENT"


class PolicyViolation(PermanentError):
    """A rule forbids the job: end it now, with a dead letter if the contract has them."""

    code = "E-POLICY"


class ValidationError(TaskError):
    """The job's input is wrong: end the job now."""

    code = "E-VALIDATION"

    def __init__(self, *args: object, reason: str = "validation_failed") -> None:
        super().__init__(*args)
        #: `parse_error` if the payload is not an object of arguments, else `validation_failed`.
        self.reason = reason


def _refusal(error_class: type[Refused], args: tuple[Any, ...], state: dict[str, Any]) -> Refused:
    refused = error_class.__new__(error_class, *args)
    refused.__dict__.update(state)
    return refused


#: Default values of each class's own attributes, for a refusal that was rebuilt from its code.
_DEFAULT_ATTRIBUTES: Final[Mapping[type[Refused], Mapping[str, Any]]] = {
    InvalidTransition: {"trigger": "", "state": ""},
    StaleLease: {"held_by": None, "since": None},
    NotDue: {"due_at": None},
    WaitingForParents: {"flow_id": 0, "node": ""},
    IdempotencyConflict: {"key": ""},
    RunAgainAlready: {"requeued_as": 0},
}
_BY_CODE: Final[Mapping[str, type[TenureError]]] = {
    error_class.code: error_class
    for error_class in (
        BadInput, UnknownContract, PayloadTooLarge, Refused, JobNotFound, InvalidTransition, StaleLease, NotDue, Busy,
        IdempotencyConflict, DuplicateJob, ScheduleNotFound, ScheduleConflict, FlowNotFound, FlowConflict,
        DatasetNotFound, DatasetConflict, WaitingForParents, RunAgainAlready, CannotConnect, Unavailable, NotPermitted,
        ConnectionLost,
    )
}  # fmt: skip


def error_from_code(
    code: str,
    message: str,
    job_id: int | None = None,
    *,
    invalid: Collection[str] = (),
    facts: Mapping[str, Any] | None = None,
) -> TenureError:
    """Return the error for a code, with these values of its own attributes as far as it has them.

    Codes in `invalid` are contracts' own codes of InvalidTransition.
    """
    error_class = _BY_CODE.get(code) or (InvalidTransition if code in invalid else Refused)
    if issubclass(error_class, Refused):
        own = _DEFAULT_ATTRIBUTES.get(error_class, {})
        known = {name: value for name, value in (facts or {}).items() if name in own}
        state = {**own, **known, "job_id": job_id, "reason_code": code}
        return _refusal(error_class, (message,), state)
    return error_class(message)
