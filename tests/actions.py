"""Short words for what is done to a job, from which tests of the model and of PostgreSQL write their histories."""

from __future__ import annotations

from tenure.model.step import HOLDER_ACTIONS, Action, Standing


def action(word: str, job: Standing) -> Action:
    """What a word says: `verb`, `verb:detail`, `late:verb`, or `to:STATE`."""
    verb, _, detail = word.partition(":")
    if verb == "late":
        return Action(detail, job.claims - 1 if job.held else job.claims)
    proof = job.claims if verb in HOLDER_ACTIONS else None
    if verb == "fail":
        return Action(verb, proof, verdict=detail or "retry")
    if verb == "to":
        return Action("transition", to=detail)
    return Action(verb, proof, to=detail, flag=detail in ("now", "undo"))
