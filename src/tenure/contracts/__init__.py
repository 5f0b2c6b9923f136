"""Contracts: what a declaration of one's own needs, and the six contracts that come with Tenure.

    from tenure.contracts import Contract, Lease, path, states

`standard` is the default contract; five implement written documents line by line. Adding a built-in contract adds one
file here. Nothing in the engine names a contract.
"""

from __future__ import annotations

from collections.abc import Mapping

from tenure.contracts.declaration import Contract, DeadLetterRules, Event, Retryable, RetryVerdict, View
from tenure.contracts.dispatcher import DISPATCHER
from tenure.contracts.gate_b2 import GATE_B2
from tenure.contracts.notation import event, path, states, view
from tenure.contracts.numbers import Backoff, Budget, Counter, Heartbeat, Jitter, Lease
from tenure.contracts.phase27 import PHASE27
from tenure.contracts.reliability import RELIABILITY
from tenure.contracts.simple import SIMPLE
from tenure.contracts.standard import STANDARD

__all__ = (
    "BUILT_IN", "Backoff", "Budget", "Contract", "Counter", "DeadLetterRules", "Event", "Heartbeat", "Jitter", "Lease",
    "RetryVerdict", "Retryable", "View", "event", "path", "states", "view",
)  # fmt: skip

BUILT_IN: Mapping[str, Contract] = {
    contract.name: contract for contract in (STANDARD, PHASE27, DISPATCHER, RELIABILITY, SIMPLE, GATE_B2)
}
