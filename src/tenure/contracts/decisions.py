"""Decisions of people: paths whose trigger is a word of the contract's own, as `approve` and `reject`.

A decision leaves a waiting state by one hop. It is taken by a request for the state that it leads to, and by nothing
else: no worker, no due time and no upkeep. The log names the person and the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from tenure.contracts.declaration import RESERVED, TRIGGERS, Contract, Path

#: From this similarity on (0 to 1), a name counts as a misspelt one.
_SIMILARITY = 0.75
_WORD = re.compile(r"[a-z][a-z0-9_]{0,39}\Z")


def decision_faults(contract: Contract, path: Path) -> Iterable[str]:
    """Yield what is wrong with a path whose trigger the engine does not know."""
    where = f"path {path.trigger}"
    if not _WORD.match(path.trigger) or path.trigger in RESERVED or path.trigger in contract.facts:
        yield f"{where}: unknown trigger; a decision is named by lower case letters, digits and _, and not like a fact"
        return
    for source in path.sources:
        if source in contract.states and set(contract.states[source]) - {"done"} != {"waiting"}:
            yield (
                f"{where}: unknown trigger{did_you_mean(path.trigger, TRIGGERS)}; triggers are "
                f"{', '.join(sorted(TRIGGERS))}. Any other is a person's decision, for which {source} does not wait"
            )
    if path.hops and (len(path.hops) > 1 or path.end.role not in ("ready", "waiting", "done", "")):
        yield f"{where}: a decision is one hop into a state that is ready, waiting or done"
    for other in contract.paths:
        if other.trigger in contract.decisions and other.trigger < path.trigger and other.hops and path.hops:
            for source in path.sources:
                if source in other.sources and other.end.state == path.end.state:
                    yield f"{where}: leads from {source} to {path.end.state}, and so does {other.trigger}; keep one"


def waiting_faults(contract: Contract) -> Iterable[str]:
    """Yield each waiting state whose wait nothing ends."""
    for state, roles in contract.states.items():
        if "waiting" in roles and not is_left(contract, state):
            yield (
                f"state {state} is waiting, but nothing ends its wait: for a time, write path('promote', "
                f"'{state} > STATE'); for a person's decision, a path of your own words, as path('approve', "
                f"'{state} > STATE')"
            )


def is_left(contract: Contract, state: str) -> bool:
    """Whether upkeep or a decision ends the wait in a state."""
    return contract.path("promote", state) is not None or bool(contract.decisions_from(state))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question for the name that was probably meant; "" if none is similar."""
    return "".join(f" (did you mean {found}?)" for found in get_close_matches(name, sorted(known), 1, _SIMILARITY))
