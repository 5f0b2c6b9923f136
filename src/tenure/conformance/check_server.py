"""Make all checks of a server, one after the other, each in a queue of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import httpx2

from tenure.conformance.result import Fault, Result
from tenure.conformance.server_checks import SERVER_CHECKS
from tenure.conformance.server_probe import Check, Probe
from tenure.conformance.task_checks import TASK_CHECKS
from tenure.errors import BadInput

CHECKS: Final = {check.name: check for check in (*SERVER_CHECKS, *TASK_CHECKS)}
#: Longer than any claim waits.
_READ_S: Final = 90


async def check_server(
    url: str,
    key: str | None,
    names: Sequence[str] = (),
    *,
    timeout_s: float = 20,
    played: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Make checks (default: all) of the server at this address; calls `played` after each."""
    if unknown := [name for name in names if name not in CHECKS]:
        raise BadInput(f"there is no check {unknown[0]!r}. Next: choose from {', '.join(CHECKS)}")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    results: list[Result] = []
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=_READ_S) as client:
        for name, check in CHECKS.items():
            if not names or name in names:
                result = await _make(check, Probe(client, timeout_s))
                results.append(result)
                played(result)
    return results


async def _make(check: Check, probe: Probe) -> Result:
    begun, faults = time.monotonic(), tuple[str, ...]()
    try:
        await check.make(probe)
    except Fault as fault:
        faults = (str(fault),)
    except httpx2.HTTPError as error:
        faults = (f"no answer: {str(error) or type(error).__name__}",)
    except (KeyError, TypeError, ValueError) as error:
        faults = (f"an answer is not as documented: {type(error).__name__}: {error}",)
    finally:
        await probe.clean_up()
    return Result(check.name, check.about, faults, time.monotonic() - begun)
