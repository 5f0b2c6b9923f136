"""The decision about a schedule that is due: which fire times get a job now, which are missed, and which is next."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple, get_args

from tenure.schedules.timing import Timing

Missed = Literal["skip", "once", "all"]
Overlap = Literal["skip", "allow"]
MISSED: Final[tuple[str, ...]] = get_args(Missed)
OVERLAP: Final[tuple[str, ...]] = get_args(Overlap)

#: A fire time that is decided at most this late was not missed.
ON_TIME_S: Final = 60.0
#: `all` makes up for this many fire times; older ones stay missed.
MAX_MADE_UP: Final = 100
#: Due times are counted up to this number.
MAX_COUNTED: Final = 1_000


class MissedTimes(NamedTuple):
    """Fire times that get no job: the first, the last, and how many (a lower bound from MAX_COUNTED on)."""

    first: datetime
    last: datetime
    times: int


class Decision(NamedTuple):
    """What happens at a moment. `fire_at`, `next_at`: the next fire time, and when it is due; None: there is none."""

    fires: tuple[datetime, ...]
    missed: MissedTimes | None
    fire_at: datetime | None
    next_at: datetime | None


def decide(timing: Timing, key: str, missed: str, fire_at: datetime, now: datetime) -> Decision:
    """Decide about all fire times from `fire_at`, the first undecided one, that are due now."""
    due: list[datetime] = []
    times = timing.times(fire_at)
    upcoming: datetime | None = fire_at
    is_complete = True
    while upcoming is not None and timing.due_at(key, upcoming) <= now:
        due.append(upcoming)
        if len(due) == MAX_COUNTED:
            is_complete = False
            break
        upcoming = next(times, None)
    if not due:
        return Decision((), None, upcoming, upcoming and timing.due_at(key, upcoming))
    recent = due
    if not is_complete:
        latest = timing.latest(due[-1], now, MAX_MADE_UP + 1)
        latest = [at for at in latest if timing.due_at(key, at) <= now]
        recent = [*due, *latest]
        upcoming = next(timing.times(recent[-1]), None)
    fires = _chosen(timing, key, missed, recent, now)
    others = recent[: len(recent) - len(fires)]
    skipped = MissedTimes(others[0], others[-1], min(len(others), MAX_COUNTED)) if others else None
    return Decision(fires, skipped, upcoming, upcoming and timing.due_at(key, upcoming))


def _chosen(timing: Timing, key: str, missed: str, due: list[datetime], now: datetime) -> tuple[datetime, ...]:
    """The fire times that get a job."""
    if missed == "all":
        return tuple(due[-MAX_MADE_UP:])
    if missed == "skip" and now - timing.due_at(key, due[-1]) > timedelta(seconds=ON_TIME_S):
        return ()
    return (due[-1],)
