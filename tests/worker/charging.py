"""An application whose task has an effect and then freezes its whole worker, run as a program."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import tenure

app = tenure.App(os.environ.get("DATABASE_URL", "postgresql://nowhere"))


@app.task(contract="reliability")
async def charge(ctx: tenure.Context, book: str) -> str:
    """Write a receipt into the book, once; the first worker freezes right after."""

    def write() -> str:
        receipt = f"receipt of {ctx.execution_key}"
        with Path(book).open("a") as lines:
            lines.write(f"{receipt}\n")
        return receipt

    receipt = await ctx.effect("charge", write)
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    return receipt
