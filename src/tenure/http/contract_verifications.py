"""Verifications of contracts: each version is explored once, in a process of its own, and the result is kept.

The explorer computes for tenths of a second, for a contract of a user perhaps for longer. It must not delay the event
loop, so it runs elsewhere: the declaration goes to the standard input of the process, the report comes from its output.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import sys
from typing import Any

from tenure.contracts.declaration import Contract
from tenure.contracts.stored_form import from_description
from tenure.model.explore import explore, is_explorable

_log = logging.getLogger("tenure.http")
#: The most processor time and memory of one exploration.
_PROCESSOR_S, _MEMORY_BYTES = 60, 2 * 1024**3
_RUN = "from tenure.http.contract_verifications import main; main()"
_UNDER_WAY: dict[str, Any] = {"state": "running", "why": None, "report": None}


class ContractVerifications:
    """The results by declaration; the first question about one starts its exploration."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[dict[str, Any]]] = {}
        #: One at a time: each takes a whole processor.
        self._turn = asyncio.Lock()

    def get(self, contract: Contract) -> dict[str, Any]:
        """The result, or that it is under way."""
        declared = json.dumps(contract.describe())
        task = self._tasks.get(declared)
        if task is None:
            task = self._tasks[declared] = asyncio.create_task(self._verify(contract, declared))
        return task.result() if task.done() else _UNDER_WAY

    async def stop(self) -> None:
        """End what is under way."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _verify(self, contract: Contract, declared: str) -> dict[str, Any]:
        if not is_explorable(contract):
            return _unknown("a path has no hops, or a number is missing")
        by_hand = f"Next: tenure contracts verify {contract.name}"
        try:
            async with self._turn:
                code, output = await _run(declared.encode())
        except OSError as error:
            return _unknown(f"no process could be started: {error}. {by_hand}")
        if code != 0:
            _log.warning("the verification of contract %s ended with code %d. %s", contract.name, code, by_hand)
            return _unknown(f"it took more than {_PROCESSOR_S} s or 2 GiB, or failed (code {code}). {by_hand}")
        report = json.loads(output)
        state = "broken" if report["broken"] else "unknown" if report["unknown"] else "held"
        return {"state": state, "why": None if report["complete"] else f"it is too large. {by_hand}", "report": report}


def _unknown(why: str) -> dict[str, Any]:
    return {"state": "unknown", "why": why, "report": None}


async def _run(declared: bytes) -> tuple[int, bytes]:
    """The exit code and the output of the process; it is killed when this is cancelled."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _RUN, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment
    )
    try:
        output, _ = await process.communicate(declared)
        return process.returncode or 0, output
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def main() -> None:
    """The process: read a declaration, explore it, write the report. Limits end it if the dispatcher cannot."""
    resource.setrlimit(resource.RLIMIT_CPU, (_PROCESSOR_S, _PROCESSOR_S))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    os.nice(10)
    json.dump(explore(from_description(json.load(sys.stdin))).to_json(), sys.stdout)
