"""Workers that are killed in the middle of a job, over and over, as fast as a test can bear it."""

from __future__ import annotations

from functools import partial

from tests.harness import Harness
from tests.worker.processes import steady_worker
from tests.worker.working import until


async def run_and_kill(dsn: str, db: Harness, job_id: int, *, times: int) -> None:
    """Let a worker take this job and kill it there, so often; each lease has run out when the next worker comes."""
    for claims in range(1, times + 1):
        with steady_worker(dsn, "--concurrency", "2") as process:
            await until(partial(_is_claimed, db, job_id, claims))
            process.kill()
            process.wait()
        db.expire(job_id)


def _is_claimed(db: Harness, job_id: int, claims: int) -> bool:
    row = db.row(job_id)
    return (row["role"], row["claims"]) == ("active", claims)
