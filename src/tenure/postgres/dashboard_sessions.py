"""Sessions of people who are logged in to the dashboard: create, find, renew, end."""

from __future__ import annotations

from typing import Final, NamedTuple

from tenure.postgres.engine import EngineUser

#: A session ends this long after its log-in, in milliseconds.
LIFETIME_MS: Final = 12 * 3_600_000
#: A token is replaced when it is this old, and then stays valid for the requests under way, in milliseconds.
RENEW_MS, GRACE_MS = 3_600_000, 60_000


class FoundSession(NamedTuple):
    """A session: the hash of the key that opened it, and whether its token is to be replaced."""

    key_hash: bytes
    is_old: bool


class DashboardSessions(EngineUser):
    """Operations on sessions of the dashboard, each by the hash of its token; `store.sessions`."""

    async def create(self, token_hash: bytes, key_hash: bytes) -> None:
        """Store the session of a person who has logged in with this key."""
        values = {"token_hash": _hex(token_hash), "key_hash": _hex(key_hash), "lifetime_ms": LIFETIME_MS}
        await self._engine.ask("create_dashboard_session", **values)

    async def find(self, token_hash: bytes) -> FoundSession | None:
        """Return the session with this token; None if there is none, or it has ended."""
        rows = await self._engine.ask("find_dashboard_session", token_hash=_hex(token_hash), renew_ms=RENEW_MS)
        return FoundSession(bytes(rows[0][0]), rows[0][1]) if rows else None

    async def renew(self, token_hash: bytes, new_hash: bytes) -> bool:
        """Give a session a new token; false if another request has done it, or the session has ended."""
        values = {
            "token_hash": _hex(token_hash),
            "new_hash": _hex(new_hash),
            "renew_ms": RENEW_MS,
            "grace_ms": GRACE_MS,
        }
        return bool(await self._engine.ask("renew_dashboard_session", **values))

    async def delete(self, token_hash: bytes) -> None:
        """End a session."""
        await self._engine.ask("delete_dashboard_session", token_hash=_hex(token_hash))


def _hex(value: bytes) -> str:
    """Return bytes in PostgreSQL's hex format."""
    return rf"\x{value.hex()}"
