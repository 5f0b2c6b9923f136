"""Which statements a module asks for, while a test looks on."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from tenure.postgres.statement import statement


def asked_by(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the statements, as they are asked for from now on."""
    names: list[str] = []

    def told(name: str, *values: Any, **options: Any) -> Any:
        names.append(name)
        return statement(name, *values, **options)

    monkeypatch.setattr(module, "statement", told)
    return names
