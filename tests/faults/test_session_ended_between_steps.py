"""PostgreSQL ends a session between two statements of a call: it is run again only if it has changed nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tenure.errors import ConnectionLost
from tenure.jobs.job import Held, NewJob
from tenure.jobs.live_worker import LiveWorker
from tenure.postgres.statement import Atomic, Plan, Query, Statement, statement
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.holder_calls import calls

_ONLY_READS = "select set_config('{}_read_only', 'on', {})"
#: The session may not write any more, from the next transaction on; or this transaction may not.
_SESSION = Statement(Query("session", _ONLY_READS.format("default_transaction", "false"), ()), ())
_TRANSACTION = Statement(Query("transaction", _ONLY_READS.format("transaction", "true"), ()), ())


@pytest.fixture
def ended_by_a_success(db: Harness) -> Iterator[None]:
    """The session that ends a job may not write any more after that."""
    db.sql(
        f"create function ends_session() returns trigger language plpgsql as "
        f"$$begin perform {_SESSION.query.text.removeprefix('select ')}; return null; end$$"
    )
    db.sql("create trigger ends after delete on tenure.job for each row execute function ends_session()")
    yield
    db.sql("drop function ends_session() cascade")


@pytest.mark.usefixtures("ended_by_a_success")
async def test_a_success_that_was_committed_is_not_told_as_a_refusal(store: Store, db: Harness) -> None:
    made = await store.enqueue(NewJob("t"))
    (job,) = await store.claim(worker="w")
    of_another = Held(job.id + 1, 1, job.held.token, job.contract, job.version)  # needs a second statement
    with pytest.raises(ConnectionLost, match=r"after a part of the call was done.*Next: repeat it with the same key"):
        await store.report("succeed", calls([job.held, of_another]))
    assert db.row(made.job_id)["state"] == "succeeded"
    db.log_is_sound(made.job_id)
    assert (await store.enqueue(NewJob("t"))).made, "the next call finds a session that writes"


async def test_a_call_that_has_only_read_is_run_again(store: Store) -> None:
    tries: list[int] = []

    def plan() -> Plan[int]:
        tries.append(1)
        yield statement("list_worker_filters", {})
        if len(tries) == 1:
            yield _SESSION
        return len((yield statement("delete_dead_workers", {})))

    assert await store._engine.run(plan) == 0
    assert len(tries) == 2


async def test_a_transaction_that_was_undone_is_run_again(store: Store, db: Harness) -> None:
    await store.workers.enter([LiveWorker("dead", ("q",), ("standard",))])
    db.sql("update tenure.worker set last_seen_at = now() - interval '1 hour'")
    tries: list[int] = []

    def both() -> Plan[int]:
        gone = yield statement("delete_dead_workers", {})
        if len(tries) == 1:
            yield _TRANSACTION
        yield statement("delete_dead_workers", {})
        return len(gone)

    def plan() -> Plan[int]:
        tries.append(1)
        gone: int = yield Atomic(both())
        return gone

    assert await store._engine.run(plan) == 1
    assert len(tries) == 2
