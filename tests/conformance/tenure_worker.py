"""Tenure's own worker, as the conformance kit starts workers: it is told by the environment."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import tenure
from tenure.errors import PermanentError

queue = os.environ["TENURE_QUEUE"]
app = tenure.App(dispatcher_url=os.environ["TENURE_URL"], key=os.environ["TENURE_KEY"])


@app.task(queue=queue)
async def echo(value: Any) -> Any:
    """Return the value."""
    return value


@app.task(queue=queue)
async def sleep(ctx: tenure.Context, seconds: float) -> tenure.Cancel | None:
    """Take so long, unless it is asked to stop."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if ctx.cancelled:
            return tenure.Cancel("asked to stop")
        await asyncio.sleep(0.02)
    return None


@app.task(queue=queue)
async def fail(message: str, permanent: bool) -> None:
    """Fail, for good or not."""
    raise PermanentError(message) if permanent else RuntimeError(message)


if __name__ == "__main__":
    app.run_worker(grace=1)
