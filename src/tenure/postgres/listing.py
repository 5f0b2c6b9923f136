"""Lists of jobs, live and finished, newest first, a page at a time: what a person or a program leafs through.

A list never reads more than a bound, however many jobs there are and however few match. Where the bound was reached
before the page was full, the page says so, and where to go on. Payloads and results are not part of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from tenure import intake
from tenure.errors import BadInput
from tenure.postgres.engine import Engine, ask
from tenure.search import MAX_AGE_S, Search

#: As many rows of live and of finished jobs are looked at for one page at the most.
SCAN = 50_000
MAX_PAGE = 1_000


class Listed(NamedTuple):
    """A job as a list shows it."""

    id: int
    contract: str
    state: str
    role: str
    queue: str
    type: str
    tenant_id: str
    priority: int
    claims: int
    counter: int
    max_attempts: int
    due_at: datetime | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    lease_owner: str | None
    lease_expires_at: datetime | None
    last_error_json: str | None

    @property
    def last_error(self) -> Mapping[str, Any] | None:
        """The last failure in short: type, code, and the beginning of its message."""
        return None if self.last_error_json is None else json.loads(self.last_error_json)


@dataclass(frozen=True, slots=True)
class Page:
    """Jobs that match, newest first."""

    jobs: list[Listed]
    #: What to give as `after` for the next page; None at the end.
    next: int | None
    #: The page is not full because so many others were looked at: there may be more, further back.
    stopped: bool


async def tally(engine: Engine) -> list[tuple[str, str, str, int]]:
    """How many jobs there are of each contract in each state, with its role; reads every job."""
    rows = await engine.run(lambda: ask("tally", {}))
    return [(contract, state, role, count) for contract, state, role, count in rows]


async def find(engine: Engine, wanted: Search, *, limit: int, after: int | None) -> Page:
    """A page of the jobs that match, live or finished."""
    intake.whole("limit", limit, 1, MAX_PAGE)
    before = intake.MAX_ID if after is None else intake.whole("after", after, 1, intake.MAX_ID)
    for kind in ("type", "queue", "tenant_id"):
        if (given := getattr(wanted, kind)) is not None:
            intake.name(kind, given)
    older, younger = _age("older_s", wanted.older_s), _age("younger_s", wanted.younger_s)
    live, done = await _where(engine, wanted)
    values = {
        "state": wanted.state, "type": wanted.type, "queue": wanted.queue, "tenant": wanted.tenant_id,
        "contract": wanted.contract, "live": live, "done": done, "after": before,
        "older_ms": older, "younger_ms": younger,
        # One more than is shown, which tells whether there is another page.
        "limit": limit + 1, "scan": limit + 1 if wanted == Search() else SCAN,
    }  # fmt: skip
    aged = older is not None or younger is not None
    rows = await engine.run(lambda: ask("find", values, parts=("aged",) * aged))
    floor = rows[0][0]
    found = [Listed._make(row[1:]) for row in rows if row[1] is not None]
    if len(found) > limit:
        return Page(found[:limit], found[limit - 1].id, stopped=False)
    return Page(found, floor + 1 if floor else None, stopped=bool(floor))


def _age(kind: str, seconds: float | None) -> int | None:
    """An age in milliseconds; refuses what no job can have."""
    age = intake.milliseconds(kind, seconds)
    return None if age is None else intake.whole(f"{kind} in milliseconds", age, 0, MAX_AGE_S * 1_000)


async def _where(engine: Engine, wanted: Search) -> tuple[bool, bool]:
    """Whether such jobs are among the live ones, and among the finished: a state's role tells."""
    await engine.run(engine.registry.load)
    if wanted.contract is not None:
        contracts = [(await engine.machine(wanted.contract)).contract]  # a misspelt name is said to be one
    else:
        contracts = engine.registry.contracts()
    if wanted.state is None:
        return True, True
    roles = {role for contract in contracts for role in contract.states.get(wanted.state, ())}
    if not roles:
        known = sorted({state for contract in contracts for state in contract.states})
        whose = f"contract {wanted.contract} has" if wanted.contract else "the registered contracts have"
        raise BadInput(f"no job can be {wanted.state!r}; {whose} the states {', '.join(known)}")
    return roles != {"done"}, "done" in roles
