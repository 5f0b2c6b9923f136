"""How values are written for programs: times as ISO 8601 in UTC, ids and tokens as texts, refusals with their code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from tenure.errors import TenureError


def as_json(value: Any) -> str:
    """Data for programs: times as ISO 8601 in UTC, tokens as text."""
    return json.dumps(value, default=_value)


def iso(at: datetime) -> str:
    """A time as programs read it."""
    return at.astimezone(UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def _value(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"no JSON for a {type(value).__name__}")


def ids_as_text(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The same fields, with these ids as JSON shows them."""
    return {key: str(value) if key in names and value is not None else value for key, value in fields.items()}


def refusal(error: TenureError) -> tuple[str, str]:
    """The code of a refusal, a contract's own before the class's, and its message without that code."""
    code = str(getattr(error, "reason_code", error.code))
    return code, str(error).removeprefix(f"{code}: ")
