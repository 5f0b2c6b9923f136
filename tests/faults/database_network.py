"""A stretch of network between workers and their database, on which connections are reset."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from contextlib import suppress
from typing import Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo


class DatabaseNetwork:
    """Passes bytes on to a server, from a thread of its own: a test that waits for a row's lock holds up nobody."""

    def __init__(self, dsn: str) -> None:
        self._given = conninfo_to_dict(dsn)
        self._clients: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="database network")
        #: How many connections there were so far, and how many were reset.
        self.opened = self.resets = 0
        self.dsn = ""

    def __enter__(self) -> Self:
        self._thread.start()
        listen = asyncio.start_server(self._connected, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(listen, self._loop).result()
        port = self._server.sockets[0].getsockname()[1]
        ours = {"host": "127.0.0.1", "port": port, "sslmode": "disable", "gssencmode": "disable"}
        self.dsn = make_conninfo(**{**self._given, **ours})
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def reset(self, share: float, chance: random.Random) -> int:
        """Reset this share of the connections, at least one if there is any; how many were."""

        async def some() -> int:
            clients = [client for client in self._clients if not client.is_closing()]
            chosen = chance.sample(clients, min(len(clients), max(1, round(share * len(clients)))))
            for client in chosen:
                raw = client.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.transport.abort()
                self._clients.discard(client)
            self.resets += len(chosen)
            return len(chosen)

        return asyncio.run_coroutine_threadsafe(some(), self._loop).result()

    async def _connected(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        host, port = str(self._given["host"]), self._given["port"]
        self.opened += 1
        try:
            if host.startswith("/"):
                far, forth = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
            else:
                far, forth = await asyncio.open_connection(host, int(str(port)))
        except OSError:
            back.close()
            return
        self._clients.add(back)
        try:
            await asyncio.gather(_carry(near, forth), _carry(far, back))
        finally:
            self._clients.discard(back)
            for writer in (forth, back):
                writer.close()

    async def _close(self) -> None:
        self._server.close()
        ours = {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
        for task in ours:
            task.cancel()
        await asyncio.gather(*ours, return_exceptions=True)


async def _carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
    target.close()
