"""The parts of upkeep that are about alarms: look for conditions, and send notices to the sinks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tenure.jobs.alarm import AlarmLimits
from tenure.postgres.store import Store
from tenure.settings import Settings
from tenure.upkeep.alarm_sinks import LogSink, Sink, send_notices, sinks_of


@dataclass(frozen=True, slots=True)
class AlarmWatch:
    """The thresholds of alarms, and the sinks that this process sends them to."""

    limits: AlarmLimits = field(default_factory=AlarmLimits)
    sinks: Sequence[Sink] = (LogSink(),)

    @classmethod
    def configured(cls, settings: Settings) -> AlarmWatch | None:
        """As the settings want it; None: they are off."""
        if not settings.alarms:
            return None
        return cls(AlarmLimits(**settings.alarm_limits), sinks_of(settings))  # type: ignore[arg-type]

    async def evaluate(self, store: Store) -> int:
        """Look for conditions, unless another process just did; returns how many alarms fired or cleared."""
        return await store.alarms.evaluate(self.limits)

    async def send(self, store: Store) -> int:
        """Send what is due to every sink; returns how many notices were sent."""
        return await send_notices(store, self.sinks)
