"""Declaring a contract: a newcomer's mistake is answered with what to write, and what is left out has a default."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tenure.contracts import BUILT_IN, Contract, Lease, path, states
from tenure.contracts.stored_form import from_description
from tenure.errors import Unsound
from tenure.jobs.why import explain_job, next_commands
from tenure.model.explore import explore
from tenure.model.fold import fold
from tenure.model.step import Action, LogRow, Standing, Stepped, new_standing, step
from tests.decisions import OWN, PURCHASE, REVIEW
from tests.lives import NOW, life

#: The machines of the six contracts before declarations were written in seconds: jobs live under them.
DIGESTS = {
    "standard": "7884ed0f499c347d2aac2766265abefa01c57c1ca41ace38312f4ccde0dd9d93",
    "phase27": "0b91199ead58b7c4aaf853acd52e94ce5942d3a2cd08628183f5cce8d0b18004",
    "dispatcher": "768c1632cff3cb75b360219b111b4f58a4989d0f9b7ca0a7490e436cf4a052c3",
    "reliability": "00e9e528f88354531591c2c35c883483abf1e55fceb264981a7d76c15b30580e",
    "simple": "d3a5e716a1e7894facfabdcfe609c1902effc3c7d6b87cdae966d71ea8afba90",
    "gate_b2": "2ac8a5e64f2f50cbe6e857e98de8789fb611f6174812a94db63896783945a1dd",
}
#: The machine of a contract that relies on every default: another one would be refused at the next `tenure migrate`.
OF_DEFAULTS = "9a5297d547f64bb2286685a47a2d60b9dbd37f7370f57f4b9b9487f26d958151"


def test_the_machines_of_the_built_in_contracts_are_as_they_were_registered() -> None:
    assert {name: contract.digest() for name, contract in BUILT_IN.items()} == DIGESTS


def test_the_defaults_of_a_declaration_do_not_change() -> None:
    assert PURCHASE.digest() == OF_DEFAULTS


@pytest.mark.parametrize("contract", OWN.values(), ids=list(OWN))
def test_a_stored_declaration_is_whole_and_comes_back_as_it_was(contract: Contract) -> None:
    again = from_description(contract.describe())
    assert again == contract
    assert again.digest() == contract.digest()
    assert [view.name for view in contract.views][:2] == ["jobs", "events"]
    shown = {on.partition(">")[0] for event in contract.events for on in event.on}
    assert shown == contract.triggers() | set(contract.facts)


def test_dead_letters_have_a_view_where_there_are_some() -> None:
    assert [view.name for view in REVIEW.views] == ["jobs", "events", "dead_letters"]


def changed(**paths: str | None) -> Contract:
    """The approval with other routes for these triggers, or without them."""
    kept = [one for one in PURCHASE.paths if one.trigger not in paths]
    more = [path(trigger, route) for trigger, route in paths.items() if route]
    return replace(PURCHASE, paths=(*kept, *more), views=(), events=())


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "a typo in a state": (
        lambda: changed(claim="aproved > running"), "path claim: unknown source state aproved (did you mean approved?)",
    ),
    "a typo in the state that a path leads to": (
        lambda: changed(claim="approved > runing"), "path claim: unknown state runing (did you mean running?)",
    ),
    "a typo in the initial state": (
        lambda: replace(PURCHASE, initial="drafts"), "initial state drafts is not declared (did you mean draft?)",
    ),
    "a typo in a trigger": (
        lambda: changed(succeed=None, suceed="running > done"),
        "path suceed: unknown trigger (did you mean succeed?); triggers are ",
    ),
    "a typo in a role": (
        lambda: replace(PURCHASE, states={**PURCHASE.states, **states(draft="waitng")}),
        "state draft has the unknown role 'waitng' (did you mean waiting?)",
    ),
    "an arrow": (lambda: path("claim", "approved -> running"), "write 'approved -> running' with > between the states"),
    "no way out of a waiting state": (
        lambda: changed(approve=None, reject="draft > rejected"),
        "for a person's decision, a path of your own words, as path('approve', 'waiting_approval > STATE')",
    ),
    "no claim": (
        lambda: changed(claim=None), "state approved is ready, but no claim path takes it; "
        "write path('claim', 'approved > STATE')",
    ),
    "no success": (
        lambda: changed(succeed=None), "no succeed path leads on; write path('succeed', 'running > STATE')",
    ),
    "no end for an error that is not retried": (
        lambda: changed(fatal=None),
        "class PermanentError leads to fatal, but running has no such path; write path('fatal', 'running > STATE')",
    ),
    "no way back from a dead worker": (
        lambda: changed(expire=None), "(no expire or reclaim path); write path('expire', 'running > STATE')",
    ),
    "no end for a dead worker": (
        lambda: changed(expire_at_cap=None), "(no expire_at_cap path); write path('expire_at_cap', 'running > STATE')",
    ),
    "a state that nothing leads to": (
        lambda: replace(PURCHASE, states={**PURCHASE.states, "lost": ("done",)}), "state lost is never reached as done",
    ),
    "a job that begins while it runs": (
        lambda: replace(PURCHASE, initial="running"),
        "initial state running is not ready, and does not wait for a decision either",
    ),
    "a decision about a running job": (
        lambda: changed(stop="running > failed"), "Any other is a person's decision, for which running does not wait",
    ),
    "a decision that starts a job": (
        lambda: changed(begin="draft > running"), "a decision is one hop into a state that is ready, waiting or done",
    ),
    "two decisions for one step": (
        lambda: changed(wave_through="waiting_approval > approved"),
        "path wave_through: leads from waiting_approval to approved, and so does approve; keep one",
    ),
    "a decision with the name of a fact": (
        lambda: changed(heartbeat="draft > rejected"), "path heartbeat: unknown trigger; a decision is named by",
    ),
    "a lease of no time": (lambda: replace(PURCHASE, lease=Lease(seconds=0)), "lease_ms is 0, outside 2000..86400000"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_with_what_to_write(mistake: str) -> None:
    declare, answer = MISTAKES[mistake]
    with pytest.raises(Unsound) as refused:
        declare()
    assert answer in str(refused.value)


@pytest.mark.parametrize("contract", OWN.values(), ids=list(OWN))
def test_every_history_with_decisions_can_end(contract: Contract) -> None:
    report = explore(contract)
    assert report.complete
    assert (report.broken, report.unknown) == ([], [])


def test_a_loop_of_decisions_without_an_end_is_found() -> None:
    circle = replace(
        PURCHASE, states={**PURCHASE.states, "doubt": ("waiting",), "more_doubt": ("waiting",)}, views=(), events=(),
        paths=(
            *PURCHASE.paths, path("wonder", "draft > doubt"), path("wonder_more", "doubt > more_doubt"),
            path("wonder_again", "more_doubt > doubt"),
        ),
    )  # fmt: skip
    (story,) = explore(circle).broken
    assert story.invariant == "an end"
    assert "nothing that time, upkeep, a decision or a new worker does can end it" in story.what


def test_a_log_of_decisions_folds_to_where_the_job_stands() -> None:
    job, log = new_standing(PURCHASE), list[LogRow]()
    for state in ("waiting_approval", "approved"):
        outcome = step(PURCHASE, job, Action("transition", to=state))
        assert isinstance(outcome, Stepped)
        job, log = outcome.after, [*log, *outcome.rows]
    folded = fold(PURCHASE, job.limit, log)
    assert isinstance(folded, Standing)
    assert (folded.state, folded.role, folded.due, folded.timeless) == ("approved", "ready", True, False)
    assert not isinstance(fold(PURCHASE, job.limit, log[1:]), Standing)


def test_time_and_upkeep_do_not_decide() -> None:
    promoted = replace(
        PURCHASE, paths=(*PURCHASE.paths, path("promote", "draft > approved")), views=(), events=()
    )  # fmt: skip
    undecided = new_standing(promoted)
    for action in (Action("ripen"), Action("promote")):
        assert step(promoted, undecided, action) == Stepped(undecided)
    later = step(promoted, new_standing(promoted, due=False), Action("ripen"))
    assert isinstance(later, Stepped)
    assert step(promoted, later.after, Action("promote")) != Stepped(later.after), "a time that was given is kept"


def test_why_says_what_a_person_can_decide() -> None:
    job = life("standard").job._replace(contract="purchase", state="draft", role="waiting", due_at=None)
    (sentence,) = explain_job(job, [], PURCHASE, NOW)
    assert "waits for a decision: submit (it becomes waiting_approval) or reject (it becomes rejected)." in sentence
    assert next_commands(job, PURCHASE)[0] == f"tenure jobs transition {job.id} waiting_approval --reason TEXT"
