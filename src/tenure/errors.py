"""Every error Tenure raises, as one tree.

    TenureError
    ├── BadInput (also ValueError)      the call was wrong; nothing was written
    │   ├── UnknownContract             no such contract, or no such version of it
    │   └── PayloadTooLarge             over the limit; nothing was written
    ├── Refused                         the call was understood and the database said no; nothing was written
    │   ├── JobNotFound
    │   ├── InvalidTransition           the contract knows no such hop from where the job is; its own code
    │   ├── StaleLease                  the caller does not hold the job (any more); says who does
    │   ├── NotDue                      the job is ready, but not yet
    │   ├── Busy                        another transaction has the row; ask again
    │   └── IdempotencyConflict         the key was used before with another body
    ├── ContractError
    │   ├── Unsound (also ValueError)   the declaration contradicts itself; says what and where
    │   └── ContractChanged             another machine is registered under this name and version
    ├── SchemaError
    │   ├── SchemaMissing               run `tenure migrate`
    │   ├── SchemaTooNew                this Tenure is older than the database
    │   └── MigrationChanged            an applied migration is not the one in this release
    ├── CannotConnect                   no connection could be had; nothing was done
    ├── Unavailable                     PostgreSQL could not do it (disk full, cancelled…); nothing was done
    │   └── NotPermitted                the connection's role, or the key, may not do it
    ├── ConnectionLost                  the answer is unknown; repeat the call with the same key
    ├── EmbeddedError                   the embedded PostgreSQL could not be found, made or started
    │   ├── NoBinaries                  no PostgreSQL programs (defined in tenure.embedded)
    │   └── StartFailed                 with the end of the server's log (defined in tenure.embedded)
    ├── JobFailed                       the job whose result was waited for did not end well
    └── TaskError                       raised by handlers to say what kind of failure it was
        ├── TransientError              try again
        │   ├── DependencyUnavailable   another service that the job needs did not answer
        │   └── InfrastructureFailure   the machine or process that ran the job failed
        ├── PermanentError              do not
        │   └── PolicyViolation         a rule forbids the job
        └── ValidationError             the input was wrong, so do not

Each class has a `code` for machines; a message says what happened and what to do next. What a dispatcher tells of is
raised as the class that it was there (`retold`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, ClassVar, Final


class TenureError(Exception):
    """The root: catch it to catch everything Tenure raises."""

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


class Refused(TenureError):
    """The database said no, and changed nothing."""

    code = "E-REFUSED"

    def __init__(self, job_id: int | None, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.reason_code = code or self.code

    def __reduce__(self) -> tuple[Any, ...]:
        """A refusal travels between processes as it is, whatever its class wants to be made of."""
        return _refusal, (type(self), self.args, self.__dict__)


class JobNotFound(Refused):
    """No job has this id, live or finished."""

    code = "JOB_NOT_FOUND"

    def __init__(self, job_id: int) -> None:
        super().__init__(job_id, f"no job, live or finished, has the id {job_id}. Next: check the id")


class InvalidTransition(Refused):
    """The contract knows no such hop from the state in which the job is."""

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
    """The job is ready but its time has not come."""

    code = "NOT_DUE"

    def __init__(self, job_id: int, due_at: datetime | None) -> None:
        super().__init__(
            job_id, f"job {job_id} is not due before {due_at}. Next: claim it then; tenure jobs why {job_id}"
        )
        self.due_at = due_at


class Busy(Refused):
    """Another transaction has the row locked just now."""

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


class ContractError(TenureError):
    """Something is wrong with a contract rather than with a job."""

    code = "E-CONTRACT"


class Unsound(ContractError, ValueError):
    """The declaration contradicts itself."""

    code = "E-UNSOUND"

    def __init__(self, contract: str, faults: list[str], declared: object = None) -> None:
        super().__init__(f"contract {contract} is not sound:\n" + "\n".join(f"  - {fault}" for fault in faults))
        self.faults = faults
        #: The declaration itself, so that what it leads to can still be looked at.
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
    """No connection to the database or the dispatcher could be had; nothing was done."""

    code = "E-CANNOT-CONNECT"


class Unavailable(TenureError):
    """PostgreSQL answered that it could not do it; nothing was done."""

    code = "E-UNAVAILABLE"


class NotPermitted(Unavailable):
    """The role of this connection, or the key that was shown, may not do that; nothing was done."""

    code = "E-NOT-PERMITTED"

    def __init__(self, message: str = "", *, code: str | None = None) -> None:
        super().__init__(message)
        #: What the dispatcher calls it: AUTH_REQUIRED, AUTH_FORBIDDEN or TENANT_SCOPE_VIOLATION.
        self.reason_code = code or self.code


class ConnectionLost(TenureError):
    """The database or the dispatcher went away during the call: it may or may not have happened."""

    code = "E-CONNECTION-LOST"


#: The database or the dispatcher is away, rather than unwilling.
AWAY: Final = (CannotConnect, ConnectionLost)


class EmbeddedError(TenureError):
    """The embedded PostgreSQL could not be found, made or started."""

    code = "E-EMBEDDED"


class JobFailed(TenureError):
    """The job whose result was waited for ended, and not well."""

    code = "E-JOB-FAILED"

    def __init__(self, job_id: int, state: str, error: Any) -> None:
        told = f": {error.get('type')}: {error.get('message')}" if isinstance(error, dict) else ""
        super().__init__(f"job {job_id} ended {state}{told}. Next: tenure jobs show {job_id}")
        self.job_id = job_id
        self.state = state
        self.error = error


class TaskError(TenureError):
    """What a handler raises to say what kind of failure it was."""

    code = "E-TASK"


class TransientError(TaskError):
    """It may work next time: retry while the budget lasts."""

    code = "E-TRANSIENT"


class DependencyUnavailable(TransientError):
    """Another service that the job needs did not answer: retry while the budget lasts."""

    code = "E-DEPENDENCY"


class InfrastructureFailure(TransientError):
    """The machine or the process that ran the job failed: retry while the budget lasts."""

    code = "E-INFRASTRUCTURE"


class PermanentError(TaskError):
    """It will not work next time either: end the job now."""

    code = "E-PERMANENT"


class PolicyViolation(PermanentError):
    """A rule forbids the job: end it now, set aside where the contract does that."""

    code = "E-POLICY"


class ValidationError(TaskError):
    """The job's input is wrong: end the job now."""

    code = "E-VALIDATION"

    def __init__(self, *words: object, reason: str = "validation_failed") -> None:
        super().__init__(*words)
        #: `parse_error` where the payload is no object of arguments at all, else `validation_failed`.
        self.reason = reason


def _refusal(kind: type[Refused], args: tuple[Any, ...], state: dict[str, Any]) -> Refused:
    refused = kind.__new__(kind, *args)
    refused.__dict__.update(state)
    return refused


#: What a class of refusal knows besides its message, where nobody said so.
_UNSAID: Final[Mapping[type[Refused], Mapping[str, Any]]] = {
    InvalidTransition: {"trigger": "", "state": ""},
    StaleLease: {"held_by": None, "since": None},
    NotDue: {"due_at": None},
    IdempotencyConflict: {"key": ""},
}
_TOLD: Final[Mapping[str, type[TenureError]]] = {
    kind.code: kind
    for kind in (
        BadInput, UnknownContract, PayloadTooLarge, Refused, JobNotFound, InvalidTransition, StaleLease, NotDue, Busy,
        IdempotencyConflict, CannotConnect, Unavailable, NotPermitted, ConnectionLost,
    )
}  # fmt: skip


def retold(code: str, message: str, job_id: int | None = None, *, invalid: Collection[str] = ()) -> TenureError:
    """The error behind this code; those of `invalid` are contracts' own for a hop that they do not have."""
    kind = _TOLD.get(code) or (InvalidTransition if code in invalid else Refused)
    if issubclass(kind, Refused):
        return _refusal(kind, (message,), {**_UNSAID.get(kind, {}), "job_id": job_id, "reason_code": code})
    return kind(message)
