"""A Django project on the database of a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integrations import site


@pytest.fixture
def project(dsn: str) -> Iterator[None]:
    """It, with no task run yet."""
    site.set_up()
    site.use(dsn)
    from django.db import connections

    from tests.integrations.tasks import ran

    ran.clear()
    yield
    connections.close_all()
