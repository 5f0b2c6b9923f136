"""A schedule as code or a person declares it: its name, its timing, its policies, and the job of each fire time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from datetime import datetime
from typing import Any

from tenure.errors import BadInput
from tenure.jobs import validation
from tenure.jobs.dataset_json import use_from_json, use_to_json
from tenure.jobs.formats import format_iso
from tenure.jobs.job import NewJob
from tenure.jobs.unique import Unique
from tenure.schedules.decision import MISSED, OVERLAP
from tenure.schedules.timing import Timing

_DEFAULTS = {field.name: field.default for field in fields(NewJob) if field.default is not MISSING}


@dataclass(frozen=True, slots=True)
class Schedule:
    """What is declared. `job` is enqueued at each fire time."""

    name: str
    job: NewJob
    timing: Timing
    missed: str = "once"
    overlap: str = "skip"

    @property
    def fingerprint(self) -> str:
        """A short hash of the whole declaration: equal declarations have equal ones."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def job_at(self, at: datetime) -> NewJob:
        """Return the job of a fire time; without a correlation id of its own it gets one that names the time."""
        return replace(self.job, correlation_id=self.job.correlation_id or f"schedule:{self.name}@{format_iso(at)}")

    def to_json(self) -> dict[str, Any]:
        """Return the declaration as JSON, without its name; of the job only what differs from the defaults."""
        job = {
            name: value for name, value in asdict(self.job).items() if name not in _DEFAULTS or value != _DEFAULTS[name]
        }
        if self.job.unique is not None:
            job["unique"] = self.job.unique._asdict()
        for name in ("reads", "writes"):
            if uses := getattr(self.job, name):
                job[name] = [use_to_json(use) for use in uses]
        return {
            "cron": self.timing.cron, "every_seconds": self.timing.every_s, "tz": self.timing.tz,
            "jitter_seconds": self.timing.jitter_s, "missed": self.missed, "overlap": self.overlap, "job": job,
        }  # fmt: skip


def declare(name: object, job: NewJob, when: Timing, *, missed: str = "once", overlap: str = "skip") -> Schedule:
    """Return a checked schedule; refuses what is wrong."""
    own = validation.check_name("schedule", name)
    if "/" in own or not own.isprintable() or own != own.strip():
        raise BadInput(f"the name of a schedule is printable text without / and outer blanks, not {own!r}")
    for field, value, allowed in (("missed", missed, MISSED), ("overlap", overlap, OVERLAP)):
        if value not in allowed:
            raise BadInput(f"{field} is {' or '.join(map(repr, allowed))}, not {value!r}")
    if missed == "all" and overlap == "skip":
        raise BadInput(
            'missed="all" makes several jobs at once, and overlap="skip" allows one. '
            'Next: add overlap="allow", or use missed="once"'
        )
    if job.run_at is not None:
        raise BadInput("a schedule decides when its jobs are made. Next: leave run_at out of the options")
    if job.expires_at is not None:
        raise BadInput("each job of a schedule expires after a time. Next: give expires as seconds or a timedelta")
    try:
        json.dumps(asdict(job), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise BadInput(f"the job of schedule {own!r} cannot be stored as JSON: {error}") from None
    return Schedule(own, job, when, missed, overlap)


def job_from_json(given: Mapping[str, Any]) -> NewJob:
    """Return a job of its fields as JSON has them."""
    unique = given.get("unique")
    if unique is not None:
        by = unique["by"]
        unique = Unique(**{**unique, "by": None if by is None else tuple(by)})
    uses = {name: tuple(map(use_from_json, given.get(name) or ())) for name in ("reads", "writes")}
    return NewJob(**{**given, "unique": unique, **uses})


def from_json(name: str, declared: Mapping[str, Any]) -> Schedule:
    """Return a stored schedule, which was checked when it was declared; unknown fields are ignored."""
    when = Timing(declared["cron"], declared["every_seconds"], declared["tz"], declared["jitter_seconds"])
    known = {field.name for field in fields(NewJob)}
    given = {field: value for field, value in declared["job"].items() if field in known}
    return Schedule(name, job_from_json(given), when, declared["missed"], declared["overlap"])
