"""The connections that `enqueue_in` and `complete_in` take, as type checkers see them; no library is imported for it.

`postgres/callers_connection.py` decides at run time.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol


class SyncConnection(Protocol):
    """psycopg's `Connection`, SQLAlchemy's `Session` and `Connection`, Django's `connection`."""

    def commit(self) -> None:
        """Commit the transaction."""

    def rollback(self) -> None:
        """Roll the transaction back."""


class AwaitedConnection(Protocol):
    """psycopg's `AsyncConnection`, SQLAlchemy's `AsyncSession` and `AsyncConnection`."""

    def commit(self) -> Awaitable[None]:
        """Commit the transaction."""

    def rollback(self) -> Awaitable[None]:
        """Roll the transaction back."""


class AsyncpgConnection(Protocol):
    """asyncpg's `Connection`, also one of a pool."""

    def is_in_transaction(self) -> bool:
        """Whether a transaction is open."""


AsyncConnection = AwaitedConnection | AsyncpgConnection
