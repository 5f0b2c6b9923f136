"""Operations on many jobs or dead letters: what is done to all that a search finds, exactly as it was previewed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from tenure.errors import BadInput
from tenure.jobs import validation
from tenure.jobs.formats import ids_to_text
from tenure.jobs.operation_summary import Summary, add_found, add_run_again

#: What can be done to many jobs, and to many dead letters.
JOB_VERBS: Final = ("cancel", "requeue", "move", "retry_now")
LETTER_VERBS: Final = ("requeue", "discard", "approve")
Kind = Literal["jobs", "dead_letters"]
OperationState = Literal["preview", "running", "aborted", "done"]

#: Verb → the options that it takes; those with True are needed.
_OPTIONS: Final[Mapping[tuple[str, str], Mapping[str, bool]]] = {
    ("jobs", "cancel"): {"mode": False, "reason": False},
    ("jobs", "requeue"): {"payload": False, "changes": False, "again": False},
    ("jobs", "move"): {"queue": True, "reason": False},
    ("jobs", "retry_now"): {"reason": False},
    ("dead_letters", "requeue"): {"payload": False, "changes": False, "again": False},
    ("dead_letters", "discard"): {"reason": True},
    ("dead_letters", "approve"): {},
}
#: The limit of speed: items per second.
_SLOWEST, _FASTEST = 0.01, 1_000_000.0

#: Other values in a payload: the keys that lead to each, and the value.
PayloadChanges = list[tuple[list[str], Any]]


class Operation(NamedTuple):
    """What a person wants done to all that a search finds, and how far it is."""

    id: int
    of_letters: bool
    verb: str
    query: str
    options_json: str
    tenant_id: str | None
    state: OperationState
    #: Whether the search has seen all; before that, the preview goes on from `cursor`.
    collected: bool
    cursor: str | None
    total: int
    per_second: float | None
    created_at: datetime
    created_by: str
    started_at: datetime | None
    started_by: str | None
    ended_at: datetime | None
    aborted_by: str | None
    done: int
    skipped_json: str | None
    summary_json: str

    @property
    def kind(self) -> Kind:
        """Of what its items are."""
        return "dead_letters" if self.of_letters else "jobs"

    @property
    def options(self) -> dict[str, Any]:
        """What its verb needs to know: mode, queue, reason, payload, changes, again."""
        options: dict[str, Any] = json.loads(self.options_json)
        return options

    @property
    def skipped(self) -> dict[str, int]:
        """How many items were left as they are, by the code of the reason."""
        return {} if self.skipped_json is None else json.loads(self.skipped_json)

    @property
    def summary(self) -> Summary:
        """What its preview has found: counts by tenant, type and error, first and last, examples."""
        return add_run_again(add_found(json.loads(self.summary_json), ()), ())

    @property
    def run_again(self) -> int:
        """How many jobs the preview has left out because they were run again already."""
        return int(self.summary["run_again"]["count"])

    @property
    def left(self) -> int:
        """How many items nothing was done about yet."""
        return self.total - self.done - sum(self.skipped.values())

    def fields(self) -> dict[str, Any]:
        """Return the operation as JSON shows it."""
        fields = ids_to_text(self._asdict(), "id")
        for name in ("of_letters", "options_json", "skipped_json", "summary_json", "cursor"):
            del fields[name]
        return {
            **fields, "kind": self.kind, "options": self.options, "skipped": self.skipped, "left": self.left,
            "summary": self.summary,
        }  # fmt: skip


class OperationItem(NamedTuple):
    """One job or dead letter of an operation."""

    item_id: int
    state: Literal["waiting", "done", "skipped"]
    #: Why it was left as it is.
    code: str | None
    why: str | None
    #: The job that was made of it.
    made: int | None
    #: The state of that job now; None when it is no longer stored.
    made_state: str | None = None

    def fields(self) -> dict[str, Any]:
        """Return the item as JSON shows it."""
        return ids_to_text(self._asdict(), "item_id", "made")


class MadeJobs(NamedTuple):
    """How the jobs are now that a requeue has made."""

    #: State → how many; those that are no longer stored are left out.
    states: dict[str, int]
    succeeded: int
    #: How many ended otherwise, and how many have not ended.
    failed: int
    unfinished: int
    gone: int
    #: Whether all jobs were looked at, and not only those of the first items.
    complete: bool
    #: The states of those that ended otherwise.
    failed_states: list[str]

    def fields(self) -> dict[str, Any]:
        """Return them as JSON shows them."""
        return self._asdict()


def check_operation(kind: str, verb: str, options: Mapping[str, Any], max_bytes: int) -> dict[str, Any]:
    """Return the options of an operation without those that are None; refuses what the verb does not know or needs."""
    if kind not in ("jobs", "dead_letters"):
        raise BadInput(f"an operation is about jobs or dead_letters, not {kind!r}")
    if (known := _OPTIONS.get((kind, verb))) is None:
        verbs = ", ".join(JOB_VERBS if kind == "jobs" else LETTER_VERBS)
        raise BadInput(f"what can be done to many {kind.replace('_', ' ')} is {verbs}; not {verb!r}")
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    if unknown := sorted(given.keys() - known.keys()):
        raise BadInput(f"{verb} takes no {unknown[0]}")
    if missing := [name for name, needed in known.items() if needed and name not in given]:
        raise BadInput(f"{verb} needs a {missing[0]}")
    if given.get("mode", "soft") not in ("soft", "hard"):
        raise BadInput(f"mode must be soft or hard; got {given['mode']!r}")
    if given.get("again") not in (None, True):
        raise BadInput(f"again must be True or False, not {given['again']!r}")
    for name in ("queue", "reason"):
        if name in given:
            validation.check_name(name, given[name])
    check_payload_edit(given.get("payload"), given.get("changes"), max_bytes)
    return given


def check_payload_edit(payload: Any, changes: PayloadChanges | None, max_bytes: int) -> None:
    """Refuse a payload that cannot be stored, changes without a path, and both together."""
    if payload is not None and changes is not None:
        raise BadInput("give another payload, or changes of the payload as it is; not both")
    if payload is not None:
        validation.to_json("payload", payload, max_bytes)
    if changes is None:
        return
    validation.to_json("changes", changes, max_bytes)
    given: Any = changes  # callers without a type checker may pass anything
    for change in given if isinstance(given, (list, tuple)) else [given]:
        if not (isinstance(change, (list, tuple)) and len(change) == 2 and _is_path(change[0])):
            raise BadInput("changes are pairs of a path and a value, like [[['user', 'id'], 7]]")


def _is_path(path: Any) -> bool:
    return isinstance(path, (list, tuple)) and 0 < len(path) <= 20 and all(isinstance(key, str) and key for key in path)


def parse_change(text: str) -> tuple[list[str], Any]:
    """Return the path and the value of `user.id=7`; what is no JSON is a text."""
    path, sign, value = text.partition("=")
    keys = path.removeprefix("payload.").split(".")
    if not sign or not _is_path(keys):
        raise BadInput(f"{text[:100]!r} is no change of a payload. Next: write it like user.id=7 or name=Ada")
    try:
        return keys, json.loads(value)
    except ValueError:
        return keys, value


def check_speed(per_second: float | None, name: str = "per_second") -> float | None:
    """Return a limit of items per second; refuses one that cannot be meant, by the name that the caller gave it."""
    if per_second is None:
        return None
    if isinstance(per_second, bool) or not isinstance(per_second, (int, float)):
        raise BadInput(f"{name} must be a number, not {per_second!r}")
    if not _SLOWEST <= per_second <= _FASTEST:
        raise BadInput(f"{name} is {per_second}; it must be within {_SLOWEST}..{_FASTEST:,.0f}")
    return float(per_second)
