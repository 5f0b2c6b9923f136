"""Log-ins: who gets in, with what, and how it ends."""

from __future__ import annotations

import asyncio

import pytest

from tenure.postgres.store import Store
from tests.dashboard.conftest import Browser, serving
from tests.harness import Harness
from tests.http.conftest import new_key


def revoke(dsn: str, name: str) -> None:
    """Revoke the key of this name."""

    async def call() -> None:
        async with Store.open(dsn, connections=1) as store:
            (found,) = [one.key for one in await store.keys.list() if one.key.name == name]
            await store.keys.revoke(found.id, "test")

    asyncio.run(call())


@pytest.fixture
def key(dsn: str) -> str:
    """A key that may look."""
    return new_key(dsn, "ann", "read", person="ann")


def test_without_a_session_every_page_leads_to_the_log_in(key: str, browser: Browser) -> None:
    response = browser.client.get("/jobs?q=state:dead", follow_redirects=False)
    assert response.status_code == 303
    assert response.headers["location"] == "/login?next=%2Fjobs%3Fq%3Dstate%3Adead"
    page = browser.client.post(response.headers["location"], data={"key": key})
    assert page.url.raw_path == b"/jobs?q=state:dead"


def test_wrong_key_is_refused_and_opens_nothing(key: str, browser: Browser, db: Harness) -> None:
    for wrong in "", "tenure_x", key[:-1], key + "x":
        assert "unknown, revoked or expired" in browser.log_in(wrong, 401)
    assert db.value("select count(*) from tenure.dashboard_session") == 0
    assert browser.client.get("/", follow_redirects=False).status_code == 303


def test_nobody_is_logged_in_by_a_page_of_another_site(key: str, browser: Browser, db: Harness) -> None:
    for origin in "https://evil.example", "null", "":
        response = browser.client.post("/login", data={"key": key}, headers={"Origin": origin})
        assert response.status_code == 403, origin
    assert db.value("select count(*) from tenure.dashboard_session") == 0


def test_cookie_is_no_key_and_scripts_cannot_read_it(key: str, browser: Browser, db: Harness) -> None:
    response = browser.client.post("/login", data={"key": key}, follow_redirects=False)
    for cookie in response.headers.get_list("set-cookie"):
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert key not in cookie
    token = browser.client.cookies["tenure_session"]
    assert db.value("select count(*) from tenure.dashboard_session where token_hash = sha256(%s)", token.encode()) == 1


def test_log_out_ends_the_session_for_good(key: str, browser: Browser) -> None:
    browser.log_in(key)
    token, cookie = browser.form_token(), browser.client.cookies["tenure_session"]
    assert browser.client.post("/logout", data={"form_token": token}, follow_redirects=False).status_code == 303
    browser.client.cookies.set("tenure_session", cookie)
    assert browser.client.get("/", follow_redirects=False).status_code == 303


def test_session_ends_with_its_time(dsn: str, key: str, url: str, db: Harness) -> None:
    browser = Browser(url)
    browser.log_in(key)
    db.sql("update tenure.dashboard_session set expires_at = now() - interval '1 second'")
    with serving(dsn) as another:  # one that has not remembered it
        late = Browser(another)
        late.client.cookies.set("tenure_session", browser.client.cookies["tenure_session"])
        assert late.client.get("/", follow_redirects=False).status_code == 303


def test_session_ends_with_its_key(dsn: str, key: str, url: str) -> None:
    browser = Browser(url)
    browser.log_in(key)
    revoke(dsn, "ann")
    with serving(dsn) as another:
        late = Browser(another)
        late.client.cookies.set("tenure_session", browser.client.cookies["tenure_session"])
        assert late.client.get("/", follow_redirects=False).status_code == 303


def test_old_token_is_replaced_once_and_stays_for_what_is_under_way(dsn: str, key: str, url: str, db: Harness) -> None:
    browser = Browser(url)
    browser.log_in(key)
    old = browser.client.cookies["tenure_session"]
    db.sql("update tenure.dashboard_session set began_at = began_at - interval '2 hours'")
    with serving(dsn) as another:
        later = Browser(another)
        later.client.cookies.set("tenure_session", old, domain="127.0.0.1")
        later.get("/")
        assert db.value("select count(*) from tenure.dashboard_session") == 2
        ends = db.sql("select token_hash = sha256(%s) as old, expires_at < now() + interval '1 hour' as soon "
                      "from tenure.dashboard_session", old.encode())  # fmt: skip
        assert all(row["old"] == row["soon"] for row in ends)
        assert later.client.get("/", follow_redirects=False).status_code == 200
    with serving(dsn) as third:
        same = Browser(third)
        same.client.cookies.set("tenure_session", old, domain="127.0.0.1")
        assert same.client.get("/", follow_redirects=False).status_code == 200
        assert db.value("select count(*) from tenure.dashboard_session") == 2


def test_token_is_replaced_only_where_the_browser_gets_the_new_one(dsn: str, key: str, url: str, db: Harness) -> None:
    browser = Browser(url)
    browser.log_in(key)
    db.sql("update tenure.dashboard_session set began_at = began_at - interval '2 hours'")
    with serving(dsn) as another:
        later = Browser(another)
        later.client.cookies.set("tenure_session", browser.client.cookies["tenure_session"], domain="127.0.0.1")
        with later.client.stream("GET", "/live/jobs") as stream:
            next(stream.iter_bytes())
        later.get("/jobs/7", 404)
        assert db.value("select count(*) from tenure.dashboard_session") == 1
        later.get("/jobs")
        assert db.value("select count(*) from tenure.dashboard_session") == 2


def test_proxy_names_the_person_only_where_it_is_believed(dsn: str, key: str) -> None:
    named = {"X-Remote-User": "ann"}
    with serving(dsn) as url:
        assert Browser(url, **named).client.get("/", follow_redirects=False).status_code == 303
    with serving(dsn, sso_header="X-Remote-User", sso_proxies=("10.1.0.0/16",)) as url:
        assert Browser(url, **named).client.get("/", follow_redirects=False).status_code == 303
    with serving(dsn, sso_header="X-Remote-User", sso_scopes=("read", "operate")) as url:
        browser = Browser(url, **named)
        assert "ann" in browser.get("/")
        browser.send("pause-queue", {"queue": "mail"})
        assert "paused by <bdi>ann</bdi>" in browser.get("/queues")
    with serving(dsn, sso_header="X-Remote-User") as url:
        Browser(url, **named).send("pause-queue", {"queue": "mail"}, status=403)


def test_proxy_is_who_connects_not_whom_a_header_names(dsn: str, key: str) -> None:
    forwarded = {"X-Remote-User": "ann", "X-Forwarded-For": "10.1.2.3"}
    with serving(dsn, sso_header="X-Remote-User", sso_proxies=("10.1.0.0/16",)) as url:
        assert Browser(url, **forwarded).client.get("/", follow_redirects=False).status_code == 303
    with serving(dsn, sso_header="X-Remote-User") as url:
        assert "ann" in Browser(url, **forwarded).get("/")
        twice = [("X-Remote-User", "root"), ("X-Remote-User", "ann")]
        assert Browser(url).client.get("/", headers=twice).status_code == 403
