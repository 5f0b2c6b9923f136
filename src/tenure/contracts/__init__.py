"""The six contracts that come with Tenure: `standard` is the default; five implement written documents line by line.

Adding a contract adds one file here. Nothing in the engine names a contract.
"""

from __future__ import annotations

from collections.abc import Mapping

from tenure.contracts.declaration import Contract
from tenure.contracts.dispatcher import DISPATCHER
from tenure.contracts.gate_b2 import GATE_B2
from tenure.contracts.phase27 import PHASE27
from tenure.contracts.reliability import RELIABILITY
from tenure.contracts.simple import SIMPLE
from tenure.contracts.standard import STANDARD

BUILT_IN: Mapping[str, Contract] = {
    contract.name: contract for contract in (STANDARD, PHASE27, DISPATCHER, RELIABILITY, SIMPLE, GATE_B2)
}
