"""Time, moved for tests: nothing in the engine moves it but the database's clock."""

from __future__ import annotations

from datetime import timedelta

from tenure.postgres.engine import ask
from tenure.postgres.store import Store


async def advance(store: Store, span: timedelta) -> None:
    """Let every live job be so much older."""
    await store._engine.run(lambda: ask("advance", {"seconds": span.total_seconds()}))
