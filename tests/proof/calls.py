"""Every call that anybody can make on a job of a contract, rightly or wrongly, and how likely each is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tenure.contracts.declaration import HELD, Contract
from tenure.model.step import HOLDER_ACTIONS, Action, Standing, new_standing
from tests.proof.stage import UPKEEP

#: Who says it: the proof is that of the last claim, that of one before, or made up.
HOLDER, LOST, STRANGER = -1, -2, -3

#: How much likelier than others the calls are that fit to where the job stands: most histories should get somewhere.
LIKELY = {
    "early": {"ripen": 40, "claim": 3, "cancel": 2},
    "ready": {"claim": 25, "cancel": 2},
    "waiting": {"promote": 20, "ripen": 20, "claim": 2, "cancel": 2},
    "undecided": {"transition": 6, "ripen": 2, "promote": 2, "claim": 2, "cancel": 2},
    "leased": {"start": 40, "lapse": 8, "cancel": 5, "heartbeat": 3, "effect": 3, "hand_back": 2, "fail": 3},
    "active": {
        "fail": 12, "lapse": 12, "cancel": 5, "heartbeat": 3, "effect": 5, "snooze": 4, "hand_back": 4,
        "cancelled": 2, "succeed": 2,
    },
    "undoing": {"compensated": 8, "compensation_failed": 4, "lapse": 8, "start": 8, "fail": 6, "cancel": 4},
    "lapsed": {"reap": 20, "claim": 12, "heartbeat": 4, "fail": 3, "hand_back": 2, "cancel": 4},
    "settling": {"settle": 8},
    "done": {},
}  # fmt: skip


def _situation(job: Standing) -> str:
    if job.role in HELD and job.expired:
        return "lapsed"
    if job.role in HELD and job.pending:
        return "undoing"
    return "early" if job.role == "ready" and not job.due else job.role


class Calls:
    """The calls of a contract."""

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self.births = list(_births(contract))
        self._likely = {where: list(_likely(contract, favourites)) for where, favourites in LIKELY.items()}

    def chosen(self, job: Standing, number: int) -> Action:
        """The call that a number stands for, when the job stands like this."""
        decides = job.role == "waiting" and self.contract.decisions_from(job.state)
        calls = self._likely["undecided" if decides else _situation(job)]
        action = calls[number % len(calls)]
        if action.proof == HOLDER:
            return replace(action, proof=job.claims)
        if action.proof == LOST:  # or, where none was lost, one that is still to be won
            return replace(action, proof=job.claims - 1 if job.claims > 1 else job.claims + 1)
        return replace(action, proof=None)


def _births(contract: Contract) -> Iterator[Standing]:
    """Jobs with three executions, the fewest and the usual; due or not; with each wish of a type."""
    budget = contract.budget
    limits = [min(max(budget.minimum, 3 - budget.extra), budget.maximum), budget.minimum, budget.default]
    for limit in dict.fromkeys(limits):
        for wish in (None, *contract.choices("exhaust")):
            yield from (new_standing(contract, limit, wish, due=due) for due in (True, False))


def _likely(contract: Contract, favourites: dict[str, int]) -> Iterator[Action]:
    """Every call, the likely ones several times."""
    for action in _every_call(contract):
        times = favourites.get(action.verb, 1) if action.proof in (None, HOLDER) else 1
        yield from [action] * times


def _every_call(contract: Contract) -> Iterator[Action]:
    for flag in (False, True):
        yield Action("claim", flag=flag)
        yield Action("lapse", flag=flag)
    yield Action("ripen")
    yield from (Action(verb) for verb in UPKEEP)
    for proof in (HOLDER, LOST, STRANGER):
        yield from _holders_calls(contract, proof)
    yield from (Action("cancel", to=mode) for mode in ("soft", "hard"))
    yield Action("dead_letter")
    yield from (Action("transition", to=state) for state in contract.states)


def _holders_calls(contract: Contract, proof: int) -> Iterator[Action]:
    """What can be said with a proof."""
    for verb in HOLDER_ACTIONS:
        if verb == "fail":
            known = [verdict.trigger for verdict in contract.retryable.classes.values()]
            given_up = [] if contract.retryable.rule == "any" else ["fatal"]
            yield from (Action(verb, proof, verdict=verdict) for verdict in dict.fromkeys(["retry", *given_up, *known]))
        elif verb in ("snooze", "hand_back") or (verb == "effect" and contract.compensates):
            yield from (Action(verb, proof, flag=flag) for flag in (False, True))
        else:
            yield Action(verb, proof)
