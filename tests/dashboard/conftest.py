"""A dispatcher with pages on a real socket, on the test's own database."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from html import unescape
from typing import Any

import httpx2
import pytest

from tenure.contracts import BUILT_IN
from tenure.dashboard.page_table import PAGES
from tenure.dashboard.site import Site
from tenure.http.dispatcher import Dispatcher
from tenure.postgres.store import Store
from tenure.settings import Settings
from tests.http.conftest import Caller
from tests.http.inventory import World

_FORM_TOKEN = re.compile(r'name="form_token" value="([0-9a-f]{64})"')
_NOTICE = re.compile(r'<p class="notice( error)?"[^>]*>(.*?)</p>', re.DOTALL)


@contextmanager
def serving(dsn: str, **settings: Any) -> Iterator[str]:
    """The address of a dispatcher with pages."""
    given = Settings(**settings)
    with (dispatcher := Dispatcher(dsn, given, pages=partial(Site, given))).in_a_thread():
        yield dispatcher.url


class Browser:
    """What a browser does without scripts: keeps cookies, follows redirects, sends forms with their token."""

    def __init__(self, url: str, **headers: str) -> None:
        self.client = httpx2.Client(base_url=url, timeout=30, follow_redirects=True, headers=headers)

    def get(self, path: str, status: int = 200) -> str:
        """The HTML of a page."""
        response = self.client.get(path)
        assert response.status_code == status, response.text
        return response.text

    def log_in(self, key: str, status: int = 200) -> str:
        """The page after the log-in."""
        response = self.client.post("/login", data={"key": key})
        assert response.status_code == status, response.text
        return response.text

    def form_token(self) -> str:
        """The token that the forms of this browser's pages have."""
        found = _FORM_TOKEN.search(self.get("/"))
        assert found is not None
        return found[1]

    def send(self, action: str, fields: Mapping[str, str], *, back: str = "/", status: int = 200) -> str:
        """The page after a form."""
        form = {"form_token": self.form_token(), "back": back, **fields}
        response = self.client.post(f"/actions/{action}", data=form)
        assert response.status_code == status, response.text
        return response.text

    def close(self) -> None:
        """Forget everything."""
        self.client.close()


def notice(page: str) -> tuple[bool, str]:
    """What a page says about the last form: whether it failed, and the text."""
    found = _NOTICE.search(page)
    assert found is not None, page
    return found[1] is not None, unescape(found[2])


@pytest.fixture
def url(dsn: str) -> Iterator[str]:
    """The address of a dispatcher with pages, without keys."""
    with serving(dsn) as address:
        yield address


@pytest.fixture
def browser(url: str) -> Iterator[Browser]:
    """A browser on that dispatcher."""
    browser = Browser(url)
    yield browser
    browser.close()


@pytest.fixture
def http(url: str) -> Iterator[Caller]:
    """Calls of the API of that dispatcher."""
    with httpx2.Client(base_url=url, timeout=30) as client:
        yield Caller(client)


async def _count_causes(dsn: str) -> None:
    async with Store.open(dsn, connections=1) as store:
        await store.groups.count_changes()


@pytest.fixture
def pages(dsn: str, http: Caller) -> dict[str, str]:
    """An address of each page, on a database with a job of each contract and a dead letter."""
    world = World(http)
    for contract in BUILT_IN:
        world.job(contract)
    letter = world.letter()
    job = {"type": "t", "payload": {}}
    body = {"application": "shop", "cron": "0 3 * * *", "job": job}
    http.client.put("/api/v1/schedules/report", json=body).raise_for_status()
    http.client.put("/api/v1/datasets/prices", json={}).raise_for_status()
    nodes = [{"name": "a", "type": "t"}, {"name": "b", "type": "t", "after": ["a"]}]
    flow = http.post("/api/v1/flows", {"name": "nightly", "nodes": nodes}, status=201)["id"]
    asyncio.run(_count_causes(dsn))
    (group,) = http.get("/api/v1/dlq/groups")["groups"]
    names = {"/jobs/": world.done(), "/dead-letters/": letter, "/schedules/": "report", "/contracts/": "gate_b2",
             "/flows/": flow, "/datasets/": "prices", "/causes/": group["fingerprint"],
             "/operations/": world.operation()}  # fmt: skip
    return {page.path: page.before + names[page.before] if page.has_name else page.path for page in PAGES}
