"""The log of upkeep: the work of each part, and each trouble once when it begins and once when it ends."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from tenure.errors import UNREACHABLE, TenureError
from tenure.upkeep.rounds import Report, describe_error

_log = logging.getLogger("tenure.upkeep")


class _Trouble(NamedTuple):
    """The reason why a part fails now."""

    kind: str
    text: str
    since: float


class StatusLog:
    """Counts and logs the work of the parts; a part is named like `extend` or `reap standard`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._troubles: dict[str, _Trouble] = {}

    @property
    def troubles(self) -> Mapping[str, str]:
        """The current troubles by part."""
        return {name: trouble.text for name, trouble in self._troubles.items()}

    def log_report(self, report: Report) -> None:
        """Count and log what a part did; log its trouble unless the same one is logged already."""
        name = part_name(report.part, report.contract)
        if report.did:
            self.counts[report.part] += report.did
            _log.debug("%s: %d", name, report.did)  # routine; each lost lease has its own line
        if report.trouble is None:
            self._end(name)
        elif self._begin(name, report.trouble, report.trouble):
            _log.warning("%s: %s", name, report.trouble)

    def log_failure(self, name: str, error: Exception) -> None:
        """Log that a part failed, unless it failed for the same reason before."""
        is_away = isinstance(error, UNREACHABLE)
        # A bug may raise a different text each time: compare its class, so that no traceback is logged each second.
        kind = "away" if is_away else str(error) if isinstance(error, TenureError) else type(error).__name__
        if not self._begin(name, kind, describe_error(error)):
            return
        if is_away:
            reason = describe_error(error).split(";")[0]  # without the hint: upkeep retries by itself
            _log.warning("%s: the database is away, trying again (%s)", name, reason)
        elif isinstance(error, TenureError):
            _log.warning("%s: %s", name, describe_error(error))
        else:
            _log.error("%s: %s", name, describe_error(error), exc_info=error)

    def _begin(self, name: str, kind: str, text: str) -> bool:
        before = self._troubles.get(name)
        self._troubles[name] = _Trouble(kind, text, before.since if before else time.monotonic())
        return before is None or before.kind != kind

    def _end(self, name: str) -> None:
        if trouble := self._troubles.pop(name, None):
            _log.info("%s: works again after %.1f s", name, time.monotonic() - trouble.since)


def part_name(part: str, contract: str | None) -> str:
    """The name of a part in the log."""
    return part if contract is None else f"{part} {contract}"
