"""Keys: who may talk to the dispatcher. Made, listed, found by their hash, revoked; never deleted."""

from __future__ import annotations

from collections.abc import Sequence

from tenure import intake
from tenure.errors import Refused
from tenure.key import Found, Key, checked, digest, hint, made
from tenure.postgres.engine import Engine, ask
from tenure.postgres.statement import Row


class Keys:
    """The verbs on keys; `store.keys`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def create(
        self,
        name: str,
        scopes: Sequence[str],
        tenant_id: str | None,
        person: str | None,
        created_by: str,
        expires_in_s: float | None = None,
    ) -> tuple[Key, str]:
        """Make a key: how it is kept, and its text, which is told this once. For all tenants where none is named."""
        new = checked(name, scopes, tenant_id, person, created_by, expires_in_s)
        text = made()
        values = {**new._asdict(), "hash": _bytes(digest(text)), "hint": hint(text)}
        (row,) = await self._engine.run(lambda: ask("create_api_key", values))
        return _key(row), text

    async def list(self) -> list[Found]:
        """Every key that was ever made, the oldest first, and whether it is live now."""
        return [_found(row) for row in await self._engine.run(lambda: ask("api_keys", {}))]

    async def find(self, hashed: bytes) -> Found | None:
        """The key whose text has this digest, and whether it is live now; None when there is no such key."""
        rows = await self._engine.run(lambda: ask("api_key", {"hash": _bytes(hashed)}))
        return _found(rows[0]) if rows else None

    async def exist(self) -> bool:
        """Whether a key was ever made, revoked or not: then nobody gets in without one."""
        ((exist,),) = await self._engine.run(lambda: ask("api_keys_exist", {}))
        return bool(exist)

    async def revoke(self, key_id: int, actor: str) -> tuple[Key, bool]:
        """Let a key open nothing any more; how it is revoked now, and whether by this call."""
        values = {"id": intake.whole("key", key_id, 1, intake.MAX_ID), "actor": intake.name("actor", actor)}
        rows = await self._engine.run(lambda: ask("revoke_api_key", values))
        if not rows:
            raise Refused(None, f"there is no key {key_id}. Next: tenure keys list", code="KEY_NOT_FOUND")
        return _key(rows[0][:-1]), rows[0][-1]


def _bytes(value: bytes) -> str:
    """Bytes as PostgreSQL reads them."""
    return rf"\x{value.hex()}"


def _key(row: Row) -> Key:
    key = Key._make(row)
    return key._replace(scopes=tuple(key.scopes))


def _found(row: Row) -> Found:
    key = _key(row[:-1])
    return Found(key, key.is_live(row[-1]))
