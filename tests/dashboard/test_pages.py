"""Every page shows what it is for, under a strict policy, with nothing from another host."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from html import unescape

import httpx2
import pytest

from tenure.contracts import BUILT_IN
from tenure.dashboard.page_table import PAGES
from tenure.http.contract_verifications import ContractVerifications
from tenure.jobs.live_worker import LiveWorker
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tests.dashboard.conftest import Browser, serving
from tests.harness import Harness
from tests.http.conftest import Caller, new_key
from tests.http.inventory import World

LINKED = re.compile(r'(?:src|href)="([^"]+)"')
#: A whole page with its scripts and styles has at most this many bytes.
MOST_BYTES = 250_000


def shows(browser: Browser, path: str, text: str) -> None:
    """Wait until a page shows this: open pages share an answer for a moment."""
    while text not in browser.get(path):
        pass


async def _reap(dsn: str) -> None:
    async with Store.open(dsn, connections=1) as store:
        await store.reap("reliability")


async def _enter(dsn: str, worker: LiveWorker) -> None:
    async with Store.open(dsn, connections=1) as store:
        await store.workers.enter([worker])


def test_every_page_answers_under_the_policy(browser: Browser, pages: dict[str, str]) -> None:
    assert set(pages) == {page.path for page in PAGES}
    for page in PAGES:
        response = browser.client.get(pages[page.path])
        assert response.status_code == 200, response.text
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert response.headers["x-frame-options"] == "DENY"
        text = response.text
        assert "<style" not in text
        assert not re.search(r"<script(?![^>]* src=)", text)
        assert not re.search(r"\son[a-z]+=|\sstyle=|javascript:", text)
        assert page.title in text


def test_pages_are_light_and_load_nothing_from_other_hosts(browser: Browser, pages: dict[str, str]) -> None:
    for path in pages.values():
        response = browser.client.get(path)
        files = {link for link in LINKED.findall(response.text) if link.startswith("/static/")}
        assert not [link for link in LINKED.findall(response.text) if not link.startswith(("/", "#"))]
        weights = [len(browser.client.get(file).raise_for_status().content) for file in files]
        assert len(files) >= 6
        assert len(response.content) + sum(weights) <= MOST_BYTES


def test_live_part_is_the_part_of_the_page_and_holds_no_secret(browser: Browser, pages: dict[str, str]) -> None:
    token = browser.form_token()
    for path in pages.values():
        page = browser.get(path)
        with browser.client.stream("GET", f"/live{path}") as stream:
            lines = []
            for line in stream.iter_lines():
                if not line:
                    break
                lines.append(line.removeprefix("data: "))
        assert token not in "\n".join(lines)
        for line in filter(str.strip, lines[:5]):
            assert line.strip() in page


def test_wrong_word_of_a_search_is_named(browser: Browser) -> None:
    page = browser.get("/jobs?q=state:dead+paylod:7")
    assert "&#39;paylod:7&#39; at character 12" in page
    assert 'aria-invalid="true"' in page


def test_search_finds_what_the_api_finds_and_pages_go_on(browser: Browser, http: Caller) -> None:
    made = [http.enqueued(queue="q") for _ in range(60)]
    page = browser.get("/jobs?q=queue:q")
    assert re.findall(r'id="job-(\d+)"', page) == made[:9:-1]
    following = re.search(r'rel="next" href="([^"]+)"', page)
    assert following is not None
    assert re.findall(r'id="job-(\d+)"', browser.get(following[1].replace("&amp;", "&"))) == made[9::-1]


def test_job_shows_its_attempts_and_how_the_errors_differ(browser: Browser, http: Caller, db: Harness) -> None:
    job_id = http.enqueued()
    for message in ("timeout", "refused"):
        db.sql("update tenure.job set due_at = now()")
        (claim,) = http.claimed()
        proof = {"claims": claim["claims"], "lease_token": claim["lease_token"]}
        error = {"type": "TransientError", "message": message, "retryable": True}
        http.post(f"/api/v1/jobs/{job_id}/fail", {**proof, "error": error})
    page = browser.get(f"/jobs/{job_id}")
    assert page.count('class="timeline"') == 2
    assert page.count(">failed, is tried again</strong>") == 2
    assert "TransientError: refused" in page
    assert '<span class="removed">-message: &#34;timeout&#34;</span>' in page
    assert '<span class="added">+message: &#34;refused&#34;</span>' in page


def test_job_shows_heartbeats_effects_requests_to_stop_and_lost_leases(
    dsn: str, browser: Browser, http: Caller, db: Harness
) -> None:
    job_id = http.enqueued("reliability", trace_id="abc")
    (claim,) = http.claimed("reliability")
    shown = {"claims": claim["claims"], "lease_token": claim["lease_token"]}
    http.post(f"/api/v1/jobs/{job_id}/start", shown)
    for _ in range(3):
        http.post(f"/api/v1/jobs/{job_id}/heartbeat", shown)
    http.post(f"/api/v1/jobs/{job_id}/effect", {**shown, "node": "charge", "result": {"receipt": "r-17"}})
    page = browser.get(f"/jobs/{job_id}")
    assert "3 heartbeats, the last" in page
    assert page.count('class="beat"') == 3
    assert "its lease ends" in page
    assert "<td><bdi>charge</bdi></td><td><code>{&#34;receipt&#34;: &#34;r-17&#34;}</code></td>" in page
    db.expire(int(job_id))
    asyncio.run(_reap(dsn))
    shows(browser, f"/jobs/{job_id}", ">lease lost</strong>")
    db.sql("update tenure.job set due_at = now()")
    (claim,) = http.claimed("reliability")
    shown = {"claims": claim["claims"], "lease_token": claim["lease_token"]}
    http.post(f"/api/v1/jobs/{job_id}/start", shown)
    http.post(f"/api/v1/jobs/{job_id}/cancel", {"mode": "soft", "reason": "not needed"})
    shows(browser, f"/jobs/{job_id}", "asked to stop")


def test_chosen_type_has_its_own_charts(browser: Browser, http: Caller) -> None:
    for type_, count in (("mail", 2), ("sync", 1)):
        for _ in range(count):
            http.enqueued(type=type_)
    http.claimed()
    made = re.compile(r'"enqueued": \[([^\]]*)\]')

    def total(path: str) -> int:
        found = made.search(unescape(browser.get(path)))
        assert found is not None
        return sum(int(one) for one in found[1].split(","))

    assert total("/") == 3
    assert total("/?contract=standard&type=mail") == 2
    page = browser.get("/")
    assert 'href="/?contract=standard&amp;type=sync"' in page
    assert "The last hour of" not in page
    assert "The last hour of" in browser.get("/?contract=standard&type=sync")


def test_worker_shows_how_late_its_loop_is_and_its_jobs(dsn: str, browser: Browser, http: Caller) -> None:
    job_id = http.enqueued()
    http.claimed(worker_id="w1")
    asyncio.run(_enter(dsn, LiveWorker("w1", ("default",), ("standard",), version="9.9", slots=4, loop_lag_s=1.5)))
    page = browser.get("/workers")
    assert "1.5 s, blocked" in page
    assert f'<a href="/jobs/{job_id}">{job_id}</a>' in page
    assert "<bdi>9.9</bdi>" in page


def test_unknown_pages_and_jobs_are_not_found(browser: Browser) -> None:
    assert "NOT_FOUND" in browser.get("/nothing", 404)
    assert "has the id 77" in browser.get("/jobs/77", 404)
    browser.get("/jobs/x", 422)
    assert browser.client.post("/jobs").status_code == 405
    assert browser.client.get("/static/../site.py").status_code == 404


def test_api_answers_as_without_pages(browser: Browser) -> None:
    for path in ("/healthz", "/readyz", "/openapi.json", "/api/v1/jobs"):
        assert browser.client.get(path).headers["content-type"] == "application/json"
    assert browser.client.get("/api/v1/nothing").json()["error"]["code"] == "NOT_FOUND"


def test_path_of_the_public_address_is_in_every_link(dsn: str) -> None:
    with serving(dsn, public_url="https://ops.example.com/tenure") as url, httpx2.Client(base_url=url) as client:
        for path in "/", "/tenure/":  # a proxy may pass the path on, or remove it
            text = client.get(path).raise_for_status().text
            assert all(link.startswith("/tenure/") for link in LINKED.findall(text) if link.startswith("/"))
        cookie = client.get("/").headers["set-cookie"]
        assert "Secure" in cookie
        assert "Path=/tenure" in cookie


def test_key_of_a_tenant_sees_its_own_jobs_and_no_page_about_all(dsn: str, url: str, http: Caller) -> None:
    mine, theirs = http.enqueued(tenant_id="acme"), http.enqueued(tenant_id="other")
    browser = Browser(url)
    browser.log_in(new_key(dsn, "ann", "read", tenant="acme"))
    page = browser.get("/jobs")
    assert f'id="job-{mine}"' in page
    assert f'id="job-{theirs}"' not in page
    browser.get(f"/jobs/{mine}")
    assert "TENANT_SCOPE_VIOLATION" in browser.get(f"/jobs/{theirs}", 403)
    assert "TENANT_SCOPE_VIOLATION" in browser.get("/queues", 403)


def test_contract_counts_the_jobs_in_its_states(browser: Browser, http: Caller) -> None:
    http.enqueued(), http.enqueued(queue="other"), http.enqueued("gate_b2"), http.claimed(limit=1)
    page = browser.get("/contracts/standard")
    assert 'aria-label="queued, ready: 1: its jobs"' in page
    assert 'aria-label="succeeded, done: its jobs"' in page, "nobody counts what has ended"
    assert "<title>queued to running: 1 in the last hour</title>" in page
    assert re.search(r'<g class="edge" data-from="queued" data-to="running">\s*<a href="/jobs\?q=state%3Arunning', page)
    assert re.search(r'data-name="Last hour" class="number">1</td>', page)
    assert "2 live jobs" in browser.get("/contracts")


def test_contract_shows_what_its_verification_found(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    page = browser.get("/contracts/standard")
    assert "takes some seconds, once" in page
    while "takes some seconds, once" in page:
        page = browser.get("/contracts/standard")
    assert "✓ Every promise holds" in page
    assert "1,117 reachable states" in page
    report = {
        "contract": "standard", "workers": 2, "runs": 3, "depth": 30, "complete": True, "states": 9, "steps": 1,
        "refused": 0, "histories": "12345678901", "held": ["a fence"], "unknown": [],
        "broken": [{"invariant": "an end", "what": "it <stays>", "story": ["worker A claims"]}],
    }  # fmt: skip
    found = {"state": "broken", "why": None, "report": report}
    monkeypatch.setattr(ContractVerifications, "get", lambda self, contract: found)
    while "Every promise holds" in page:  # open pages share an answer for a moment
        page = browser.get("/contracts/standard")
    assert "✗ 1 promise is broken" in page
    assert "it &lt;stays&gt;" in page
    assert "worker A claims" in page
    assert "1.2 · 10^10 histories" in page


def test_users_own_contract_has_a_page(dsn: str, browser: Browser, http: Caller) -> None:
    standard = BUILT_IN["standard"]
    mine = replace(standard, name="mine", title="Mine & <yours>", views=(), states={**standard.states})
    migrate(dsn, {"mine": mine})
    http.enqueued("mine")
    page = browser.get("/contracts/mine")
    assert "Mine &amp; &lt;yours&gt;" in page
    assert 'aria-label="queued, ready: 1: its jobs"' in page
    assert "/contracts/mine" in browser.get("/contracts")


def test_htmx_and_its_extension_arrive_together(browser: Browser) -> None:
    scripts = re.findall(r'<script src="([^"]+)"', browser.get("/"))
    texts = [browser.client.get(script).text for script in scripts]
    (both,) = [text for text in texts if "registerExtension" in text and "htmx" in text]
    assert both.index("hx-sse:connect") > both.index("registerExtension")


def test_overview_counts_every_open_dead_letter(browser: Browser, http: Caller) -> None:
    world = World(http)
    for _ in range(9):  # more than its list of the newest shows
        world.letter()
    http.get("/api/v1/dlq/groups")  # which counts what upkeep has not
    shows(browser, "/", '<p class="figure"><a href="/dead-letters">9</a></p>')


def test_job_as_a_command_is_of_its_tenant_and_without_names_of_the_engine(browser: Browser, http: Caller) -> None:
    job = {"type": "send", "tenant_id": "acme", "priority": 2, "payload": {"to": "a", "$timeout": 9}}
    made = http.post("/api/v1/jobs", job, status=201)["id"]
    page = unescape(browser.get(f"/jobs/{made}"))
    assert '"tenant_id": "acme", "priority": 2' in page
    assert "--tenant acme --priority 2" in page
    assert "options(queue='default', tenant='acme', priority=2).enqueue(**{'to': 'a'})" in page


def test_what_is_settled_is_not_offered_again(browser: Browser, http: Caller) -> None:
    world = World(http)
    letter = world.letter()
    (cause,) = http.get("/api/v1/dlq/groups")["groups"]
    job = http.get(f"/api/v1/dlq/items/{letter}")["job_id"]
    assert "Requeue all of this cause" in browser.get(f"/causes/{cause['fingerprint']}")
    assert "Run again</button>" in browser.get(f"/jobs/{job}")
    http.post(f"/api/v1/dlq/items/{letter}/requeue", {})
    http.get("/api/v1/dlq/groups")
    while "Requeue all of this cause" in browser.get(f"/causes/{cause['fingerprint']}"):
        pass
    while "Run again</button>" in browser.get(f"/jobs/{job}"):
        pass
