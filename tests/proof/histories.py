"""Lives of jobs under all six contracts, lived through the public verbs: what an audit and a replay must get right.

A life is a line of words, one verb each. `claim*` starts too; `lose` lets the lease run out and upkeep close it; `take`
lets it run out and another worker take it; a word with a colon gives a verb its argument.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tenure.jobs.job import Failure, Held, Job, NewJob
from tenure.jobs.job_type import JobType
from tenure.postgres.store import Store
from tests.harness import Harness

WIDTH = 1_048_576

TRANSIENT = Failure("try again", type="TransientError", code="AGAIN", retryable=True)
FATAL = Failure("never again", type="PermanentError", code="NEVER", retryable=False)
INVALID = Failure("not understood", type="ValidationError", code="INVALID", retryable=False)

#: contract → what becomes of the job → (the life, the limit where it is not the contract's)
LIVES: dict[str, dict[str, tuple[str, int | None]]] = {
    "standard": {
        "queued": ("", None),
        "running": ("claim", None),
        "asked to stop": ("claim soft", None),
        "tried again": ("claim fail", None),
        "succeeded": ("claim succeed", None),
        "rich": ("claim fail claim snooze claim hand_back claim lose claim effect:pay succeed", None),
        "exhausted": ("claim fail claim fail", 2),
        "fatal": ("claim break", None),
        "lost at the cap": ("claim lose claim lose", 2),
        "cancelled before it ran": ("soft", None),
        "cancelled at once": ("claim hard", None),
        "cancelled by its holder": ("claim soft cancelled", None),
        "cancelled by failing": ("claim soft fail", None),
        "cancelled by being lost": ("claim fail claim soft lose", None),
        "stopped by itself": ("claim cancelled", None),
        "set aside": ("dead_letter:operator", None),
        "set aside while held": ("claim fail claim dead_letter:spam", None),
        "moved by an operator": ("to:running to:succeeded", None),
    },
    "phase27": {
        "queued": ("", None),
        "running": ("claim", None),
        "tried again": ("claim fail", None),
        "completed": ("claim fail claim take succeed", None),
        "taken twice": ("claim take take fail claim", None),
        "handed back": ("claim hand_back claim succeed", None),
        "exhausted": ("claim fail claim fail", 2),
        "lost at the cap": ("claim take lose", 2),
    },
    "dispatcher": {
        "Queued": ("", None),
        "Running": ("claim beat", None),
        "waiting": ("claim fail", None),
        "promoted": ("claim fail promote", None),
        "Completed": ("claim fail promote claim lose promote claim succeed", None),
        "Failed": ("claim fail promote claim fail", 2),
        "lost at the cap": ("claim lose", 1),
        "Canceled": ("hard", None),
        "cancelled while waiting": ("claim fail hard", None),
        "cancelled at once": ("claim hard", None),
        "cancelled by failing": ("claim soft fail", None),
        "cancelled by being lost": ("claim soft lose", None),
        "handed back": ("claim hand_back promote claim succeed", None),
    },
    "reliability": {
        "queued": ("", None),
        "assigned": ("claim", None),
        "running": ("claim* beat beat", None),
        "succeeded": ("claim* fail claim lose claim* beat succeed", None),
        "exhausted": ("claim* fail claim* fail", 2),
        "fatal": ("claim* break", None),
        "invalid": ("claim* invalid", None),
        "lost at the cap": ("claim lose claim* lose", 2),
        "cancelled": ("soft", None),
        "cancelled at once": ("claim* hard", None),
        "cancelled by its holder": ("claim* soft cancelled", None),
        "cancelled by being lost": ("claim* soft lose", None),
        "set aside": ("dead_letter:policy_violation", None),
        "set aside while held": ("claim* dead_letter:parse_error", None),
        "handed back": ("claim* hand_back claim* succeed", None),
        "compensating": ("claim* undoable:pay break", None),
        "compensated": ("claim* effect:look undoable:pay undoable:ship break compensated", None),
        "compensated by the next": ("claim* undoable:pay lose claim* break lose claim* compensated", None),
        "not compensated": ("claim* undoable:pay break not_compensated", None),
        "compensated, then cancelled": ("claim* undoable:pay cancelled compensated", None),
        "left to be undone": ("claim* undoable:pay lose", 1),
        "moved by an operator": ("to:assigned to:running to:failed", None),
    },
    "simple": {
        "PENDING": ("", None),
        "RUNNING": ("claim", None),
        "tried again": ("claim fail", None),
        "SUCCESS": ("claim fail claim lose claim succeed", None),
        "FAILED": ("claim fail claim fail", 2),
        "lost at the cap": ("claim lose", 1),
        "CANCELLED": ("soft", None),
        "cancelled by failing": ("claim soft fail", None),
        "cancelled by being lost": ("claim fail claim soft lose", None),
        "cancelled by its holder": ("claim cancelled", None),
        "handed back": ("claim hand_back claim succeed", None),
    },
    "gate_b2": {
        "queued": ("", None),
        "running": ("claim", None),
        "retrying": ("claim fail", None),
        "succeeded": ("claim fail claim lose claim succeed", None),
        "failed": ("claim fail claim fail claim fail claim fail", None),
        "fatal": ("claim break", None),
        "lost at the cap": ("claim lose claim lose claim lose claim lose", None),
        "set aside": ("claim fail dead_letter:operator", None),
        "moved by an operator": ("claim to:retrying claim to:dlq_pending", None),
    },
}  # fmt: skip


@dataclass
class Lived:
    """Jobs by `contract: what became of it`, and what was decided about some."""

    ids: dict[str, int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> int:
        return self.ids[name]


class Player:
    """Lives lives."""

    def __init__(self, store: Store, db: Harness) -> None:
        self.store = store
        self.db = db
        self.worker = 0

    async def live(self, contract: str, line: str, limit: int | None = None, **options: Any) -> int:
        """Live one life; the job's id."""
        options = {"type": "t", "payload": {"n": 7}, "queue": f"q-{contract}", **options}
        made = await self.store.enqueue(NewJob(contract=contract, max_attempts=limit, **options))
        held: Held | None = None
        for word in line.split():
            verb, _, argument = word.partition(":")
            held = await self._do(contract, made.job_id, verb, argument, held)
        return made.job_id

    async def _do(self, contract: str, job_id: int, verb: str, argument: str, held: Held | None) -> Held | None:
        store, db = self.store, self.db
        if verb in ("claim", "claim*", "take"):
            db.expire(job_id) if verb == "take" else db.due(job_id)
            job = await self._claimed(contract, job_id)
            if verb == "claim*":
                await store.start(job.held)
            return job.held
        verbs: dict[str, Callable[[], Awaitable[Any]]] = {
            "lose": lambda: self._lost(contract, job_id),
            "promote": lambda: self._promoted(contract, job_id),
            "soft": lambda: store.cancel(job_id, mode="soft", actor="ada", reason="not wanted"),
            "hard": lambda: store.cancel(job_id, mode="hard", actor="ada"),
            "dead_letter": lambda: store.dead_letter(job_id, reason_code=argument, actor="ada"),
            "to": lambda: store.transition(job_id, argument, actor="ada", reason="by hand"),
        }
        if held is not None:
            verbs |= self._holders(held, argument)
        await verbs[verb]()
        return held

    def _holders(self, held: Held, argument: str) -> dict[str, Callable[[], Awaitable[Any]]]:
        store = self.store
        return {
            "beat": lambda: store.heartbeat(held),
            "succeed": lambda: store.succeed(held, {"ok": True}),
            "fail": lambda: store.fail(held, TRANSIENT),
            "break": lambda: store.fail(held, FATAL),
            "invalid": lambda: store.fail(held, INVALID),
            "snooze": lambda: store.snooze(held, 60_000),
            "hand_back": lambda: store.hand_back(held),
            "cancelled": lambda: store.cancelled(held, "stopped"),
            "effect": lambda: store.effect(held, argument, {"receipt": argument}),
            "undoable": lambda: store.effect(held, argument, {"receipt": argument}, compensable=True),
            "compensated": lambda: store.compensated(held),
            "not_compensated": lambda: store.compensation_failed(held, FATAL),
        }

    async def _claimed(self, contract: str, job_id: int) -> Job:
        self.worker += 1
        (job,) = await self.store.claim_by_id([job_id], worker=f"w{self.worker}", contract=contract)
        assert isinstance(job, Job), job
        return job

    async def _lost(self, contract: str, job_id: int) -> None:
        self.db.expire(job_id)
        assert job_id in [outcome.job_id for outcome in await self.store.reap(contract)]

    async def _promoted(self, contract: str, job_id: int) -> None:
        self.db.due(job_id)
        assert job_id in [outcome.job_id for outcome in await self.store.promote(contract)]


async def live_all(store: Store, db: Harness) -> Lived:
    """Every life of every contract, and what people and upkeep do to finished ones."""
    player, lived = Player(store, db), Lived()
    for contract, lives in LIVES.items():
        for name, (line, limit) in lives.items():
            lived.ids[f"{contract}: {name}"] = await player.live(contract, line, limit)
    await store.types.declare([JobType("gentle", contract="reliability", on_exhausted="failed")])
    chosen = await player.live("reliability", "claim* fail", 1, type="gentle")
    lived.ids["reliability: failed by choice"] = chosen
    lived.ids["standard: keyed"] = await player.live("standard", "claim succeed", key="order-1")
    lived.ids["standard: keyed and live"] = await player.live("standard", "", key="order-2")
    await store.cancel(await player.live("standard", ""), actor="ada", key="cancel-1")
    await at_a_commit_point(player, lived)
    await decide(player, lived)
    return lived


async def at_a_commit_point(player: Player, lived: Lived) -> None:
    """A job whose record could not be written, and which upkeep has not settled yet."""
    player.db.sql(
        "create function public.refuse() returns trigger language plpgsql as "
        "$$ begin raise exception 'the disk of the dead letters is full'; end $$"
    )
    player.db.sql(
        "create trigger refuse before insert on tenure.dead_letter for each row execute function public.refuse()"
    )
    lived.ids["gate_b2: dlq_pending"] = await player.live("gate_b2", "claim break")
    player.db.sql("drop trigger refuse on tenure.dead_letter")
    player.db.sql("drop function public.refuse()")
    assert player.db.row(lived["gate_b2: dlq_pending"])["state"] == "dlq_pending"


async def decide(player: Player, lived: Lived) -> None:
    """Dead letters that were run again, thrown away by one person and by two, and one that waits for the second."""
    letters = player.store.letters
    for contract, name in (("standard", "requeued"), ("standard", "discarded"), ("gate_b2", "discarded by two"),
                           ("gate_b2", "asked about")):  # fmt: skip
        lived.ids[f"{contract}: {name}"] = await player.live(contract, "claim break")
    lived.ids["standard: run again"] = await player.store.requeue(lived["standard: requeued"], actor="ada")
    lived.ids["standard: run once more"] = await player.store.requeue(lived["standard: succeeded"], actor="ada")
    for name in ("standard: discarded", "gate_b2: discarded by two", "gate_b2: asked about"):
        letter = await letters.of_job(lived[name])
        await letters.request_discard(letter.id, person="Ada", reason="spam")
    await letters.approve_discard((await letters.of_job(lived["gate_b2: discarded by two"])).id, person="Bob")


async def retire_a_range(store: Store, db: Harness) -> None:
    """Jobs that are gone with their range; a dead letter of one outlives it, another was run again and is gone too."""
    player = Player(store, db)
    await player.live("standard", "claim effect:pay succeed", key="long ago")
    await player.live("standard", "claim break")
    again = await store.requeue(await player.live("standard", "claim break"), actor="ada")
    await store.cancel(again, actor="ada")
    db.sql("select setval('tenure.job_id_seq', %s)", WIDTH)
    db.sql("update tenure.range set made_at = now() - interval '100 days' where low = 0")
    db.sql("update tenure.job_done set finished_at = now() - interval '100 days'")
    assert await store.history.retire_ranges() == 1
