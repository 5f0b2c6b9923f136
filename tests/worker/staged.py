"""Tasks under contract `reliability` that fail in a process of their own, which finds them by name."""

from __future__ import annotations

import os

import tenure
from tenure.jobs.job import Stage

app = tenure.App("postgresql://nowhere")


@app.task(contract="reliability", isolation="process", max_attempts=1)
def fails(ctx: tenure.Context, stage: Stage) -> None:
    """Fail at a stage."""
    with ctx.stage(stage):
        raise tenure.TransientError(f"failed at {stage}")


@app.task(contract="reliability", isolation="process", max_attempts=1)
def dies(ctx: tenure.Context, stage: Stage) -> None:
    """Take the process down at a stage."""
    with ctx.stage(stage):
        os._exit(7)
