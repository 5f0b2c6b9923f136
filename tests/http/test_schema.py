"""No answer is a 5xx or outside of its schema: schemathesis sends each operation what its schema allows,
and what it does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from tenure.contracts import BUILT_IN
from tests.conftest import Databases
from tests.http.conftest import Caller, serving
from tests.http.inventory import SCHEMA
from tests.pooler import Pooler

pytestmark = pytest.mark.serial

#: Keys are left to the inventory: here everybody may do everything.
schema = schemathesis.openapi.from_dict({part: said for part, said in SCHEMA.items() if part != "security"})
_CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
#: What is wrong with one of many is said of that one, in an answer that is well.
_IN_PARTS = ("/api/v1/jobs/batch", "/api/v1/finishes", "/api/v1/starts", "/api/v1/heartbeats")
_SESSION = requests.Session()
_UNHURRIED = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def unhurried(examples: int) -> settings:
    """The same examples in every run: found once is found always, and nothing is found by chance in somebody's way."""
    return settings(
        max_examples=examples, derandomize=True, deadline=None, database=None, suppress_health_check=_UNHURRIED,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
    )  # fmt: skip


@pytest.fixture(scope="module")
def served(databases: Databases, pooler: Pooler | None) -> Iterator[str]:
    """The address of a dispatcher, one for this file; there are a few jobs to be found."""
    with databases.lend() as dsn:
        with serving(dsn, internal_run=True) as url:
            with httpx2.Client(base_url=url, timeout=30) as client:
                for contract in BUILT_IN:
                    Caller(client).enqueued(contract)
            yield url
        if pooler is not None:
            pooler.let_go(dsn)


def ask(case: schemathesis.Case[Any], url: str) -> None:
    """Send what was made up, without waiting for jobs, and look at the answer."""
    bags: tuple[Any, ...] = (case.body, case.query)
    for bag in bags:
        waits = bag.get("wait_seconds") if isinstance(bag, dict) else None
        if isinstance(waits, (int, float)) and waits is not True and 0 < waits <= 60:
            bag["wait_seconds"] = 0.01
    checks = _CHECKS if case.operation.path in _IN_PARTS else [*_CHECKS, negative_data_rejection]
    case.call_and_validate(base_url=url, session=_SESSION, checks=checks, timeout=60)


@schema.parametrize()
@unhurried(4)  # beside some sixty that every operation gets: each field at its bounds, and beyond
def test_every_operation_answers_within_its_schema(case: schemathesis.Case[Any], served: str) -> None:
    ask(case, served)
