"""What a scenario or a check found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


class Fault(Exception):
    """A fault that ends its scenario or check; the text says what the worker or the server did wrong."""


@dataclass(frozen=True, slots=True)
class Result:
    """One scenario or check: what it is about, and the faults that it found."""

    name: str
    about: str
    faults: tuple[str, ...]
    seconds: float
    #: The last lines that a worker with a fault has printed.
    output: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no fault was found."""
        return not self.faults

    def fields(self) -> dict[str, Any]:
        """The result as JSON shows it."""
        return {**asdict(self), "passed": self.passed, "seconds": round(self.seconds, 1)}
