"""Whether an idle connection is still usable: unsolicited server messages can be read at once.

PostgreSQL sends a FATAL message before it ends a session: one that was idle for too long, also inside a transaction, or
that an administrator ended. A caller that checks before it sends knows that the next statement was not executed.
"""

from __future__ import annotations

import math
import select
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import psycopg
from psycopg_pool import AsyncConnectionPool

#: Connections whose FATAL message arrived together with the answer to their last statement.
_ended: WeakSet[psycopg.AsyncConnection[Any]] = WeakSet()


#: When the server last answered a call on a connection.
_used: WeakKeyDictionary[psycopg.AsyncConnection[Any], float] = WeakKeyDictionary()


async def watch(connection: psycopg.AsyncConnection[Any]) -> None:
    """Watch a new connection: the driver treats a FATAL message that arrives with an answer as a notice."""
    watched = ref(connection)

    def note(notice: psycopg.errors.Diagnostic) -> None:
        ended = watched()
        if ended is not None and notice.severity_nonlocalized in ("FATAL", "PANIC"):
            _ended.add(ended)

    connection.add_notice_handler(note)


def note_use(connection: psycopg.AsyncConnection[Any]) -> None:
    """Note that the server just answered on this connection."""
    _used[connection] = monotonic()


def idle_seconds(connection: psycopg.AsyncConnection[Any]) -> float:
    """Return the seconds since the last use of this connection; endless for one that was never used.

    A new connection may have waited in the pool for hours. Its FATAL message may also be in the driver's buffer
    already: read together with the end of the connection's start, where no handler gets it.
    """
    return monotonic() - _used.get(connection, -math.inf)


async def is_ended(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Whether the server has ended this connection. Takes microseconds; asks the server only if it sent something."""
    return connection in _ended or (_has_message(connection) and not await responds(connection))


async def responds(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Whether the server answers an empty statement."""
    try:
        await AsyncConnectionPool.check_connection(connection)
    except psycopg.Error:
        return False
    return True


def is_read_only(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Whether the server reported that it does not accept writes (any more); it reports so with an answer."""
    status = connection.pgconn.parameter_status
    return status(b"default_transaction_read_only") == b"on" or status(b"in_hot_standby") == b"on"


def _has_message(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Whether an unsolicited message can be read: the end of the session, or a changed setting."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))
