"""Two contracts in which people decide: the approval of the guide, and one that uses decisions wherever it may."""

from __future__ import annotations

from tenure.contracts import (
    BUILT_IN,
    Backoff,
    Budget,
    Contract,
    Counter,
    DeadLetterRules,
    Lease,
    path,
    states,
)
from tenure.postgres.migrate import migrate

PURCHASE = Contract(
    name="purchase",
    version="1",
    title="A purchase that a person approves",
    states=states(
        draft="waiting", waiting_approval="waiting", approved="ready", running="active",
        done="done", rejected="done", failed="done",
    ),
    initial="draft",
    paths=(
        path("submit", "draft > waiting_approval"),
        path("approve", "waiting_approval > approved"),
        path("reject", "draft|waiting_approval > rejected"),
        path("claim", "approved > running"),
        path("succeed", "running > done"),
        path("retry", "running > approved"),
        path("expire", "running > approved"),
        path("exhaust", "running > failed"),
        path("fatal", "running > failed"),
        path("expire_at_cap", "running > failed"),
    ),
    budget=Budget(default=3),
)  # fmt: skip

#: A person decides before the first run, and after a failure earlier than the backoff; some decisions end the job.
REVIEW = Contract(
    name="review",
    version="1",
    title="Asked, then run; after a failure a person or the time decides",
    states=states(
        asked="waiting", queued="ready", taken="leased", running="active", parked="waiting", held_up="waiting",
        made="done", refused="done", dropped="done", dead="done",
    ),
    initial="asked",
    paths=(
        path("accept", "asked > queued"),
        path("refuse", "asked|parked|held_up > refused", letter="refused"),
        path("claim", "queued > taken"),
        path("start", "taken > running"),
        path("succeed", "running > made"),
        path("retry", "running > parked"),
        path("promote", "parked > queued"),
        path("again", "parked|held_up > queued", due="now"),
        path("hold_up", "parked > held_up"),
        path("settle_for", "held_up > made"),
        path("exhaust", "running > dead", letter="exhausted"),
        path("fatal", "running > dead", letter="fatal"),
        path("expire", "taken|running > held_up", due="keep"),
        path("expire_at_cap", "taken|running > dead", letter="lost"),
        path("snooze", "running > queued"),
        path("hand_back", "taken|running > queued"),
        path("cancel", "asked|queued|taken|running|parked|held_up > dropped"),
        path("dead_letter", "asked|queued|running > dead", letter="operator"),
    ),
    counter=Counter("turn", on=("claim", "again")),
    budget=Budget("turns", default=2),
    backoff=Backoff(base_seconds=10, cap_seconds=60),
    lease=Lease(seconds=30),
    dead_letters=DeadLetterRules("record"),
    cancel_modes=("soft", "hard"),
    facts=("cancel_requested", "heartbeat"),
)  # fmt: skip

OWN = {contract.name: contract for contract in (PURCHASE, REVIEW)}


def register(dsn: str, *contracts: Contract) -> None:
    """Register contracts, by default both, as `tenure migrate --contract` does."""
    migrate(dsn, {**BUILT_IN, **{contract.name: contract for contract in contracts or OWN.values()}})
