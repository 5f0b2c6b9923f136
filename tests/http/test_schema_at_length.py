"""What `test_schema.py` shows, with a hundred requests more for each operation."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis

from tests.http.test_schema import ask, schema, served, unhurried

__all__ = ["served"]
pytestmark = [pytest.mark.serial, pytest.mark.prove]


@schema.parametrize()
@unhurried(100)
def test_every_operation_answers_within_its_schema_at_length(case: schemathesis.Case[Any], served: str) -> None:
    ask(case, served)
