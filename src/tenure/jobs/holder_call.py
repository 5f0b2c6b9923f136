"""The verbs of a job's holder as one table, and one call of such a verb.

The store, both clients, the dispatcher's routes and its batch endpoints follow this table. A new verb needs:

    a row here, and its paths in the contracts that have it
    its triggers in `postgres/bound_contract.py`; new facts in `postgres/hold.py`, `postgres/move.py` and the template
    its route in `http/route_table.py`, its body in `http/routes/holding.py`; new facts there and in `client/remote.py`
    its action in `model/step.py`, and its tests
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tenure.jobs.dataset import DatasetEvent, Output
from tenure.jobs.job import Failure, Held


@dataclass(frozen=True, slots=True)
class HolderVerb:
    """One verb: the fields of `HolderCall` that it carries, and whether a call may have an idempotency key."""

    name: str
    facts: frozenset[str] = frozenset()
    takes_key: bool = True
    #: The holder's part ends with it: `POST /api/v1/finishes` takes it.
    ends_hold: bool = False
    #: Concurrent calls go in one batch. A verb that waits for a locked row is sent alone: others would wait with it.
    is_batched: bool = True

    @property
    def path(self) -> str:
        """The verb as the last part of its route: `/api/v1/jobs/{id}/hand-back`."""
        return self.name.replace("_", "-")


HOLDER_VERBS: Mapping[str, HolderVerb] = {
    verb.name: verb
    for verb in (
        HolderVerb("start"),
        HolderVerb("heartbeat", frozenset({"blocks"})),
        HolderVerb("progress", frozenset({"value"}), takes_key=False, is_batched=False),
        HolderVerb("checkpoint", frozenset({"value"}), takes_key=False, is_batched=False),
        HolderVerb("succeed", frozenset({"result", "events", "dataset_events", "outputs"}), ends_hold=True),
        HolderVerb("fail", frozenset({"failure", "events"}), ends_hold=True),
        HolderVerb("snooze", frozenset({"delay_ms"}), ends_hold=True),
        HolderVerb("hand_back", frozenset({"delay_ms", "reason"}), ends_hold=True),
        HolderVerb("cancelled", frozenset({"reason", "events"}), ends_hold=True),
        HolderVerb("compensated", is_batched=False),
        HolderVerb("compensation_failed", frozenset({"failure"}), is_batched=False),
    )
}


@dataclass(slots=True)  # not frozen: that would cost every job a microsecond
class HolderCall:
    """One call of a holder's verb about one job; the fields that the verb does not carry stay unset."""

    held: Held
    key: str | None = None
    result: Any = None
    failure: Failure | BaseException | None = None
    delay_ms: int = 0
    reason: str | None = None
    #: Of progress and checkpoint: what is stored.
    value: Any = None
    #: Of a heartbeat: the handler blocks the event loop of its worker.
    blocks: bool = False
    #: Stored together with the end of the job, or not at all.
    events: Sequence[Any] = ()
    #: Of succeed: events of datasets and outputs to them, which are stored with it too.
    dataset_events: Sequence[DatasetEvent] = ()
    outputs: Sequence[Output] = ()
