"""A real Chromium, and pages of a dispatcher on the test's own database."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tenure.postgres.store import Store
from tests.dashboard.conftest import serving
from tests.http.conftest import Caller

#: Without these Chromium looks for hosts of its maker, which a machine without a network refuses one by one.
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip

#: A busy machine may need longer than the default of 5 s; a test that passes waits for its condition only.
expect.set_options(timeout=30_000)


@pytest.fixture(scope="module")  # an event loop runs as long as it does, in which no async test could run
def chromium() -> Iterator[Browser]:
    """The browser. Without it the tests are left out; with TENURE_REQUIRE they fail."""
    program = shutil.which("chromium")
    if program is None:
        why = "Chromium is not installed (Debian: apt-get install chromium)"
        pytest.fail(why) if "TENURE_REQUIRE" in os.environ else pytest.skip(why)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield browser
        browser.close()


def with_store(dsn: str, work: Callable[[Store], Awaitable[object]]) -> None:
    """Do this with a store, as workers and upkeep do; in a thread: in this one the browser has an event loop."""

    async def run() -> None:
        async with Store.open(dsn, connections=1) as store:
            await work(store)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(run())).result()


def count_causes(dsn: str) -> None:
    """Count the causes of dead letters, as upkeep does."""
    with_store(dsn, lambda store: store.groups.count_changes())


def work_on_operations(dsn: str) -> None:
    """Do what running operations have left, as upkeep does."""
    with_store(dsn, lambda store: store.operations.work())


@pytest.fixture
def url(dsn: str) -> Iterator[str]:
    """The address of a dispatcher with pages, without keys."""
    with serving(dsn) as address:
        yield address


@pytest.fixture
def http(url: str) -> Iterator[Caller]:
    """Calls of the API of that dispatcher."""
    with httpx2.Client(base_url=url, timeout=30) as client:
        yield Caller(client)


@pytest.fixture
def page(chromium: Browser, url: str) -> Iterator[Page]:
    """A window that fails the test when a script fails, or asks another host for something."""
    context = chromium.new_context(base_url=url, viewport={"width": 1200, "height": 900})
    opened = context.new_page()
    troubles: list[str] = []
    opened.on("pageerror", lambda error: troubles.append(str(error)))
    opened.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    opened.on("request", lambda sent: None if sent.url.startswith((url, "data:")) else troubles.append(sent.url))
    yield opened
    context.close()
    assert troubles == []
