from tenure.job import NewJob
from tenure.postgres.store import Store
from tests.harness import Harness


async def test_life(store: Store, db: Harness) -> None:
    db.spy()
    made = await store.enqueue(NewJob("t"))
    (job,) = await store.claim(worker="w")
    await store.succeed(job.held, {"x": 1})
    assert [(h.old, h.new) for h in db.seen(made.job_id)] == [("queued", "running"), ("running", "succeeded")]
    db.log_is_sound(made.job_id)
