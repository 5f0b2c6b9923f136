"""API keys of the dispatcher: create, list, find by hash, revoke. A key is never deleted."""

from __future__ import annotations

from collections.abc import Sequence

from tenure.errors import Refused
from tenure.jobs import validation
from tenure.jobs.api_key import ApiKey, FoundApiKey, check_new_key, generate_key, hash_key, key_hint
from tenure.postgres.engine import EngineUser
from tenure.postgres.statement import Row


class ApiKeys(EngineUser):
    """Operations on API keys; `store.keys`."""

    async def create(
        self,
        name: str,
        scopes: Sequence[str],
        tenant_id: str | None,
        person: str | None,
        created_by: str,
        expires_in_s: float | None = None,
    ) -> tuple[ApiKey, str]:
        """Create a key for one tenant, or for all; returns the stored key and its text, which is shown only here."""
        new = check_new_key(name, scopes, tenant_id, person, created_by, expires_in_s)
        text = generate_key()
        values = {**new._asdict(), "hash": _bytes(hash_key(text)), "hint": key_hint(text)}
        (row,) = await self._engine.ask("create_api_key", **values)
        return _key(row), text

    async def list(self) -> list[FoundApiKey]:
        """Return every key that was ever created, the oldest first, and whether it is valid now."""
        return [_found(row) for row in await self._engine.ask("list_api_keys")]

    async def find(self, hashed: bytes) -> FoundApiKey | None:
        """Return the key with this hash, and whether it is valid now; None if there is none."""
        rows = await self._engine.ask("read_api_key", hash=_bytes(hashed))
        return _found(rows[0]) if rows else None

    async def exist(self) -> bool:
        """Whether a key was ever created, revoked or not. From then on every request needs a key."""
        ((exist,),) = await self._engine.ask("any_api_key_exists")
        return bool(exist)

    async def revoke(self, key_id: int, actor: str) -> tuple[ApiKey, bool]:
        """Revoke a key; returns the key and whether this call revoked it."""
        values = {
            "id": validation.check_integer("key", key_id, 1, validation.MAX_ID),
            "actor": validation.check_name("actor", actor),
        }
        rows = await self._engine.ask("revoke_api_key", **values)
        if not rows:
            raise Refused(None, f"there is no key {key_id}. Next: tenure keys list", code="KEY_NOT_FOUND")
        return _key(rows[0][:-1]), rows[0][-1]


def _bytes(value: bytes) -> str:
    """Return bytes in PostgreSQL's hex format."""
    return rf"\x{value.hex()}"


def _key(row: Row) -> ApiKey:
    key = ApiKey._make(row)
    return key._replace(scopes=tuple(key.scopes))


def _found(row: Row) -> FoundApiKey:
    key = _key(row[:-1])
    return FoundApiKey(key, key.is_live(row[-1]))
