"""Histories that are written down, each for one rule: PostgreSQL does after every step what the model does."""

from __future__ import annotations

import pytest

from tenure.contracts import BUILT_IN
from tenure.model.step import new_standing
from tests.actions import action
from tests.proof.stage import Stage

#: The rule → the contract, what is done to a job that may run twice (gate_b2: four times), and its state afterwards.
HISTORIES = {
    "a soft-cancelled job that is lost is cancelled": ("standard", "claim cancel:soft lapse reap", "cancelled"),
    "a soft-cancelled job that fails is cancelled": ("standard", "claim cancel:soft fail", "cancelled"),
    "a soft-cancelled job that is put off is cancelled": ("standard", "claim cancel:soft snooze:now", "cancelled"),
    "a soft-cancelled job that is handed back is cancelled": ("standard", "claim cancel:soft hand_back", "cancelled"),
    "a success wins over a soft cancel": ("standard", "claim cancel:soft succeed", "succeeded"),
    "a queued job is cancelled at once": ("reliability", "cancel:soft", "cancelled"),
    "an assigned job is cancelled at once": ("reliability", "claim cancel:soft start succeed", "cancelled"),
    "an assigned job with effects is asked": ("reliability", "claim effect:undo cancel:soft", "assigned"),
    "its effects are undone first": ("reliability", "claim effect:undo cancel:soft cancelled compensated", "cancelled"),
    "a running job is asked": ("reliability", "claim start cancel:soft heartbeat", "running"),
    "a lost job is retried while the budget lasts": ("reliability", "claim lapse reap", "queued"),
    "a lost job at its limit is set aside": ("reliability", "claim lapse reap claim lapse reap", "dead_lettered"),
    "a failure at the limit is set aside": ("standard", "claim fail ripen claim fail", "dead"),
    "a live lease is not taken": ("phase27", "claim claim", "running"),
    "an expired lease is taken": ("phase27", "claim lapse claim late:succeed succeed", "completed"),
    "a failed job refuses its last holder": ("gate_b2", "claim fail:fatal succeed fail heartbeat effect", "failed"),
    "a failed job refuses an earlier holder": ("gate_b2", "claim fail ripen claim fail:fatal late:succeed", "failed"),
    "a failed job refuses who lost it": ("gate_b2", "claim dead_letter succeed fail", "failed"),
}


@pytest.mark.parametrize("rule", HISTORIES)
def test_postgresql_follows_the_model_through_a_written_history(dsn: str, rule: str) -> None:
    name, words, end = HISTORIES[rule]
    contract = BUILT_IN[name]
    with Stage(dsn, contract) as stage:
        player = stage.enter(new_standing(contract, None if contract.budget.minimum == contract.budget.maximum else 2))
        for word in words.split():
            player.act(action(word, player.model))
        assert player.row["state"] == end
        assert stage.audited() == []


@pytest.mark.parametrize("word", ["succeed", "fail", "heartbeat", "effect", "hand_back", "late:succeed"])
def test_a_job_at_its_commit_point_refuses_what_the_model_refuses(dsn: str, word: str) -> None:
    with Stage(dsn, BUILT_IN["gate_b2"]) as stage:
        player = stage.enter(new_standing(BUILT_IN["gate_b2"], 3))
        for step in ("claim", "fail:fatal"):
            player.act(action(step, player.model), stopped=True)
        assert player.row["state"] == "dlq_pending"
        player.act(action(word, player.model))
        player.act(action("settle", player.model))
        assert player.row["state"] == "failed"
