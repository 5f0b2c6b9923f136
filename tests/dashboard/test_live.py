"""Live pages: a change comes by itself, readers share what is read, and streams end when they should."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import httpx2
import pytest

from bench.statement_counts import SETTINGS, Log, watched
from tenure.dashboard import shared_reads
from tenure.dashboard.live import Streams
from tenure.dashboard.shared_reads import SHARED_S, SharedReads
from tenure.dashboard.site import Site
from tenure.http import authentication
from tenure.http.dispatcher import Dispatcher
from tenure.postgres.migrate import migrate
from tenure.settings import Settings
from tests.conftest import OwnCluster, own_database
from tests.dashboard.conftest import Browser, serving
from tests.http.conftest import Caller, new_key


def events(lines: Iterator[str]) -> Iterator[str]:
    """The texts of the events of a stream; beats are empty."""
    text: list[str] = []
    for line in lines:
        if line:
            text.append(line)
        else:
            yield "\n".join(one.removeprefix("data: ") for one in text if one.startswith("data: "))
            text = []


def test_new_job_appears_by_itself(browser: Browser, http: Caller) -> None:
    with browser.client.stream("GET", "/live/jobs") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        found = events(stream.iter_lines())
        assert "No job." in next(found)
        job_id = http.enqueued()
        assert any(f'id="job-{job_id}"' in text for text in found)


def test_stream_ends_with_its_rights(dsn: str, url: str) -> None:
    key = new_key(dsn, "ann", "read")
    browser = Browser(url)
    browser.log_in(key)
    with browser.client.stream("GET", "/live/jobs") as stream:
        found = events(stream.iter_lines())
        next(found)
        other = Browser(url)
        other.client.cookies.set("tenure_session", browser.client.cookies["tenure_session"], domain="127.0.0.1")
        assert other.client.post("/logout", data={"form_token": other.form_token()}).status_code == 200
        for _ in found:  # ends: the rights are looked up again after some seconds
            pass


def test_streams_end_when_the_dispatcher_stops(dsn: str) -> None:
    settings = Settings()
    dispatcher = Dispatcher(dsn, settings, pages=partial(Site, settings))
    with ThreadPoolExecutor(1) as pool:
        with dispatcher.in_a_thread():
            client = httpx2.Client(base_url=dispatcher.url, timeout=60)
            stream = client.stream("GET", "/live/")
            response = stream.__enter__()
            found = events(response.iter_lines())
            next(found)
            ending = pool.submit(lambda: sum(1 for _ in found))
        assert ending.result(60) >= 0  # `in_a_thread` raises if the dispatcher does not stop
        stream.__exit__(None, None, None)
        client.close()


async def test_readers_share_an_answer_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("tenure.dashboard.shared_reads.time.monotonic", lambda: now)
    reads, go = 0, asyncio.Event()

    async def read() -> int:
        nonlocal reads
        reads += 1
        await go.wait()
        return reads

    shared = SharedReads()
    waiting = [asyncio.create_task(shared.get("key", read)) for _ in range(50)]
    await asyncio.sleep(0)
    waiting[0].cancel()  # one that goes away takes nothing from the others
    go.set()
    assert set(await asyncio.gather(*waiting[1:])) == {1}
    assert await shared.get("key", read) == 1
    assert await shared.get("other", read) == 2
    now = SHARED_S
    assert await shared.get("key", read) == 3
    shared.forget()
    assert await shared.get("key", read) == 4


async def test_failed_answer_is_not_kept() -> None:
    shared, answers = SharedReads(), iter([ValueError("no"), 7])

    async def read() -> object:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(ValueError, match="no"):
        await shared.get("key", read)
    assert await shared.get("key", read) == 7


async def test_stream_without_changes_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("tenure.dashboard.live.time.monotonic", lambda: now)
    monkeypatch.setattr("tenure.dashboard.live.ROUND_S", 0.0)
    texts = iter(["a", "a", "b"])
    rounds = 0

    async def render() -> str:
        nonlocal now, rounds
        rounds += 1
        now += 1.0
        return next(texts, "b")

    async def may_go_on() -> bool:
        return rounds < 9

    found = [event async for event in Streams().rounds(render, may_go_on)]
    assert found[:2] == [b"data: a\n\n", b"data: b\n\n"]
    assert set(found[2:]) == {b"event: beat\ndata: \n\n"}


@pytest.fixture(scope="module")
def logged(own_cluster: OwnCluster) -> Iterator[tuple[str, Log]]:
    """A database whose server logs every statement of a dispatcher, and that log."""
    with own_cluster(**SETTINGS) as cluster, own_database(cluster.dsn) as dsn:
        migrate(dsn)
        yield watched(dsn), Log(cluster.directory / "log")


def counted(log: Log) -> Counter[str]:
    """How often each statement was sent since the log was last read."""
    return Counter(sent.name for sent in log.read() if not sent.is_frame)


@pytest.mark.parametrize("path", ["/", "/jobs", "/dead-letters"])
def test_fifty_open_pages_send_the_statements_of_one_for_each_tenant_and_scope(
    logged: tuple[str, Log], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    dsn, log = logged
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    for module in shared_reads, authentication:  # so that answers are shared until the test moves the clock
        monkeypatch.setattr(module, "time", clock)
    with serving(dsn) as url:
        browsers = [Browser(url), Browser(url)]
        for browser, tenant in zip(browsers, (None, "acme"), strict=True):
            browser.log_in(new_key(dsn, "ann", "read", tenant=tenant))
        clock.now += 60
        log.skip()
        for browser in browsers:
            browser.get(path)
        once = counted(log)
        clock.now += 60

        def look(number: int) -> None:
            cookies = browsers[number % 2].client.cookies
            with httpx2.stream("GET", f"{url}/live{path}", timeout=60, cookies=cookies) as stream:
                found = events(stream.iter_lines())
                for _ in range(2):
                    next(found)

        with ThreadPoolExecutor(50) as pool:
            list(pool.map(look, range(50)))
        sent = counted(log)
    assert sent.total() > 2
    assert sent <= once, sent - once


def test_a_stream_is_for_get_alone(browser: Browser) -> None:
    response = browser.client.head("/live/jobs")
    assert (response.status_code, response.headers["allow"]) == (405, "GET")
    browser.get("/jobs")
