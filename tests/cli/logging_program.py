"""An application whose tasks log, for workers that are commands."""

from __future__ import annotations

import logging

import tenure

app = tenure.App()
_log = logging.getLogger("shop")


@app.task(max_attempts=1)
async def fails() -> None:
    """Log, and fail."""
    _log.info("about to fail")
    raise ValueError("odd")


@app.task(isolation="process")
def elsewhere() -> None:
    """Log from a process of its own."""
    _log.info("in a process of its own")
