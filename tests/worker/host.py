"""A FastAPI application with a worker inside its lifespan, as docs/guide.md shows it; served by uvicorn in tests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

import tenure

app = tenure.App(os.environ.get("DATABASE_URL", "postgresql://nowhere"))


@app.task
async def hold(gate: str) -> str:
    """Wait until a file is there."""
    Path(f"{gate}.began").touch()  # noqa: ASYNC240
    while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240 (the gate is a file)
        await asyncio.sleep(0.01)
    return "let go"


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Run a worker for as long as the application is up."""
    worker = app.worker(poll=0.05, grace=float(os.environ.get("GRACE", "30")))
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run(handle_signals=False))
        yield
        worker.stop()


api = FastAPI(lifespan=lifespan)


@api.post("/hold")
async def enqueue(gate: str) -> dict[str, int]:
    """Make a job."""
    return {"id": (await hold.enqueue(gate)).id}
