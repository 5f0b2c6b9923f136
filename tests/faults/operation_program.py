"""A process that works on one operation until it is done, or until it is killed."""

from __future__ import annotations

import asyncio
import sys

from tenure.postgres.store import Store


async def main(dsn: str, operation_id: int) -> None:
    """Work, one batch after the other."""
    async with Store.open(dsn, connections=1) as store:
        while (await store.operations.show(operation_id)).state == "running":
            if not (await store.operations.work(operation_id, batches=1)).items:
                await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
