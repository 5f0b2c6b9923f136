"""What upkeep says: what it did, and what stands in its way, once when that begins and once when it is over."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from tenure.errors import AWAY, TenureError
from tenure.upkeep.rounds import Report, trouble

_log = logging.getLogger("tenure.upkeep")


class _Standing(NamedTuple):
    """What stands in the way of a part."""

    kind: str
    text: str
    since: float


class Telling:
    """Counts and logs what parts of upkeep did; a part is named like `extend` or `reap standard`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._standing: dict[str, _Standing] = {}

    @property
    def troubles(self) -> Mapping[str, str]:
        """What stands in the way right now, by part."""
        return {name: standing.text for name, standing in self._standing.items()}

    def reported(self, report: Report) -> None:
        """Say what a round did, if anything, and what it could not do, unless that was said already."""
        name = named(report.part, report.contract)
        if report.did:
            self.counts[report.part] += report.did
            _log.info("%s: %d", name, report.did)
        if report.trouble is None:
            self._over(name)
        elif self._begins(name, report.trouble, report.trouble):
            _log.warning("%s: %s", name, report.trouble)

    def failed(self, name: str, error: Exception) -> None:
        """Say that a part failed, unless it failed for the same reason before."""
        away = isinstance(error, AWAY)
        # Of what a bug makes each time another text of, the kind is enough: no traceback a second.
        kind = "away" if away else str(error) if isinstance(error, TenureError) else type(error).__name__
        if not self._begins(name, kind, trouble(error)):
            return
        if away:
            why = trouble(error).split(";")[0]  # what a caller should do next is done
            _log.warning("%s: the database is away, trying again (%s)", name, why)
        elif isinstance(error, TenureError):
            _log.warning("%s: %s", name, trouble(error))
        else:
            _log.error("%s: %s", name, trouble(error), exc_info=error)

    def _begins(self, name: str, kind: str, text: str) -> bool:
        before = self._standing.get(name)
        self._standing[name] = _Standing(kind, text, before.since if before else time.monotonic())
        return before is None or before.kind != kind

    def _over(self, name: str) -> None:
        if standing := self._standing.pop(name, None):
            _log.info("%s: works again after %.1f s", name, time.monotonic() - standing.since)


def named(part: str, contract: str | None) -> str:
    """A part of upkeep, as it is called in the log."""
    return part if contract is None else f"{part} {contract}"
