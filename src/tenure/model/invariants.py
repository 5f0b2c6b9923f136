"""The invariants of every contract, and how a step breaks them.

    one lease        a job is claimed only while no lease on it is valid
    no stale commit  no call is accepted from a holder that lost the job
    no way back      inside an epoch (from a claim to its end) the rank of the job only rises
    the end is one   a finished job never changes
    budget           a job is claimed at most as often as its limit allows
    retries          every failure leads to a path, and is retried exactly while the budget lasts
    one row a hop    every hop has one log row that follows the row before; only declared facts have other rows
    letters          a job ends with or without a dead letter, as its contract declares
    an end           from every state, time, upkeep, decisions and new workers alone can bring the job to an end

The explorer checks the last one, because it concerns all steps together.
"""

from __future__ import annotations

from collections.abc import Iterable

from tenure.contracts.declaration import HELD, Contract
from tenure.contracts.soundness import EPOCH_ENDS, RANK
from tenure.model.counterexample import Move, count_times
from tenure.model.step import HOLDER_ACTIONS, Action, Outcome, Standing, Stepped, in_budget

INVARIANTS = (
    "one lease", "no stale commit", "no way back", "the end is one", "budget", "retries", "one row a hop", "letters",
    "an end",
)  # fmt: skip

#: Triggers that a failure may lead to. Any other would hide it, or retry the job without spending its budget.
_ANSWERS = frozenset({"retry", "exhaust", "fatal", "dead_letter", "cancel", "compensation_failed"})


def is_overspent(contract: Contract, job: Standing) -> bool:
    """Whether the job was claimed more often than its limit allows."""
    return job.claims > contract.budget.executions(job.limit, job.raises)


def find_violations(contract: Contract, before: Standing, move: Move, outcome: Outcome) -> Iterable[tuple[str, str]]:
    """Yield each invariant that this step breaks, and how."""
    action = move.action
    if not isinstance(outcome, Stepped):
        if action.verb == "fail" and outcome.why == "invalid" and before.role == "active":
            yield "retries", f"{move.who} reports a failure, and its contract has no answer to it"
        return
    after, triggers = outcome.after, [row.trigger for row in outcome.rows if row.hop]
    if after.claims > before.claims and before.held and not before.expired:
        yield "one lease", f"{move.who} claims the job while the lease of claim {before.claims} is alive"
    if after.claims > before.claims and after.role not in HELD:
        yield "one lease", f"{move.who} claims the job, and it stands in {after.state} without a lease"
    forfeited = contract.lease.after_expiry == "forfeited" and before.expired
    if action.verb in HOLDER_ACTIONS and (forfeited or not (before.held and action.proof == before.claims)):
        yield "no stale commit", f"{move.who} shows claim {action.proof}, which is lost, and is heard all the same"
    if before.role == "done" and after != before:
        yield "the end is one", f"the job was {before.state}, which is final, and becomes {after.state}"
    if is_overspent(contract, after):
        runs = contract.budget.executions(after.limit, after.raises)
        yield "budget", f"the job is claimed {count_times(after.claims)}, and may be run {count_times(runs)}"
    yield from _retry_faults(contract, before, action, triggers)
    fell = RANK.get(after.role, 0) < RANK.get(before.role, 0)
    if triggers and fell and not EPOCH_ENDS & set(triggers):
        yield "no way back", f"{', '.join(triggers)} takes the job from {before.state} back to {after.state}"
    yield from _log_faults(contract, before, outcome)
    if after.role == "done" and before.role != "done":
        yield from _letter_faults(contract, after)


def _retry_faults(
    contract: Contract, before: Standing, action: Action, triggers: list[str]
) -> Iterable[tuple[str, str]]:
    if "retry" in triggers and not in_budget(contract, before):
        yield "retries", "the job is tried again although its budget is spent"
    if "exhaust" in triggers and in_budget(contract, before) and action.verb != "transition":  # an operator may
        yield "retries", "the job is given up although its budget lasts"
    if action.verb == "fail" and not _ANSWERS.issuperset(triggers):
        yield "retries", f"a failure is answered with {', '.join(triggers)}, which is no answer to a failure"


def _letter_faults(contract: Contract, ended: Standing) -> Iterable[tuple[str, str]]:
    mode = contract.dead_letters.mode
    keeping = [path for path in contract.paths if path.letter or (mode == "staged" and path.trigger == "settle")]
    kept = {path.end.state for path in keeping if path.end.role == "done" and mode != "none"}
    if ended.letter != (ended.state in kept):
        how = "without its dead letter" if ended.state in kept else "with a dead letter that does not belong there"
        yield "letters", f"the job ends in {ended.state} {how}"


def _log_faults(contract: Contract, before: Standing, outcome: Stepped) -> Iterable[tuple[str, str]]:
    state = before.state
    for row in outcome.rows:
        if row.from_state != state or (not row.hop and row.to_state != state):
            yield "one row a hop", f"the log says {row.from_state} → {row.to_state} while the job was {state}"
        if not row.hop and row.trigger not in contract.facts:
            yield "one row a hop", f"the log tells of {row.trigger}, which is no hop and no fact of the contract"
        state = row.to_state
    if state != outcome.after.state:
        yield "one row a hop", f"the job becomes {outcome.after.state}, and its log ends in {state}"
