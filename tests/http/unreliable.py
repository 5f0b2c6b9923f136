"""A stretch of network between clients and dispatchers that loses answers, resets connections and takes its time."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class Network:
    """Passes bytes on to one of some dispatchers; rolls a die for each answer."""

    def __init__(self, seed: int, *, lost: float = 0.0, reset: float = 0.0, delayed: float = 0.0) -> None:
        self._chance = random.Random(seed)
        self._lost, self._reset, self._delayed = lost, reset, delayed
        #: Where dispatchers are; they may come and go.
        self.behind: list[tuple[str, int]] = []
        self.did: Counter[str] = Counter()
        self.url = ""

    def leads_to(self, urls: Sequence[str]) -> None:
        """From now on connections go to one of these."""
        self.behind = [(str(parts.hostname), int(parts.port or 0)) for parts in map(urlsplit, urls)]

    async def _connect(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        try:
            far, forth = await asyncio.open_connection(*self._chance.choice(self.behind))
        except (OSError, IndexError):
            back.close()
            return
        sending = asyncio.create_task(_pass_on(near, forth))
        try:
            while answer := await far.read(1 << 20):
                if not await self._may_pass(back):
                    break
                back.write(answer)
                await back.drain()
        except (OSError, ConnectionError):
            pass
        finally:
            sending.cancel()
            for writer in (forth, back):
                writer.close()

    async def _may_pass(self, back: asyncio.StreamWriter) -> bool:
        """Whether an answer gets through; one that does not takes its connection with it."""
        die = self._chance.random()
        if die < self._lost:
            self.did["lost"] += 1
            return False
        if die < self._lost + self._reset:
            self.did["reset"] += 1
            raw = back.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            back.transport.abort()
            return False
        if die < self._lost + self._reset + self._delayed:
            self.did["delayed"] += 1
            await asyncio.sleep(self._chance.uniform(0.01, 0.2))
        self.did["passed"] += 1
        return True


async def _pass_on(near: asyncio.StreamReader, forth: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, ConnectionError):
        while asked := await near.read(1 << 20):
            forth.write(asked)
            await forth.drain()
        forth.write_eof()


@asynccontextmanager
async def network(seed: int, *, lost: float = 0.0, reset: float = 0.0, delayed: float = 0.0) -> AsyncIterator[Network]:
    """Such a stretch, listening at its `url`."""
    between = Network(seed, lost=lost, reset=reset, delayed=delayed)
    server = await asyncio.start_server(between._connect, "127.0.0.1", 0)
    between.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield between
    finally:
        server.close()
