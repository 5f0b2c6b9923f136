"""Pages as people use them: live, by keyboard, on a phone, with every text that somebody may store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tenure.contracts import BUILT_IN
from tenure.dashboard.page_table import PAGES
from tests.browser.conftest import count_causes, work_on_operations
from tests.harness import Harness
from tests.http.conftest import Caller
from tests.http.inventory import World

AXE = (Path(__file__).parent / "axe.min.js").read_text()
#: WCAG 2.2 AA and what axe-core adds as good practice.
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
#: Texts that people or programs may store: script, markup, characters that turn the text around, very long ones.
HOSTILE = (
    "<script>window.hacked=1</script>", "\"><img src=x onerror='window.hacked=1'>", "javascript:window.hacked=1",
    "{{ 7*7 }}{% raw %}", "</title><svg onload=window.hacked=1>", "\u202egnp.exe\u2066", "a" * 190,
    "\u0007\u001b[31m", "' or 1=1 --", "&lt;b&gt;", "${7*7}", "data:text/html,<script>window.hacked=1</script>",
    "\U0001d57f\ufdfd", "x\u200b\u200d\ufeffy", "<!--", "]]>", "%3Cscript%3E", "\\u003cscript\\u003e",
)  # fmt: skip


@pytest.fixture
def addresses(dsn: str, http: Caller) -> dict[str, str]:
    """An address of each page, on a database with something of everything."""
    world = World(http)
    for contract in BUILT_IN:
        world.job(contract)
    world.held()
    job = {"type": "t", "payload": {}}
    http.client.put("/api/v1/schedules/report", json={"application": "shop", "cron": "@daily", "job": job})
    http.client.put("/api/v1/datasets/prices", json={}).raise_for_status()
    nodes = [{"name": "a", "type": "t"}, {"name": "b", "type": "t", "after": ["a"]}]
    flow = http.post("/api/v1/flows", {"name": "nightly", "nodes": nodes}, status=201)["id"]
    http.post("/api/v1/queues/pause", {"queue": "world", "reason": "repair"})
    http.post("/api/v1/queues/resume", {"queue": "world"})
    letter = world.letter()
    done = world.done()
    http.post("/api/v1/queues/pause", {"queue": "world", "reason": "repair"})
    count_causes(dsn)
    (group,) = http.get("/api/v1/dlq/groups")["groups"]
    names = {
        "/jobs/": done, "/dead-letters/": letter, "/schedules/": "report", "/contracts/": "gate_b2", "/flows/": flow,
        "/datasets/": "prices", "/causes/": group["fingerprint"], "/operations/": world.operation(),
    }  # fmt: skip
    return {page.path: page.before + names.get(page.before, "") for page in PAGES}


def violations(page: Page, rules: Sequence[str] = RULES) -> list[str]:
    """What axe-core finds on the page as it is shown."""
    found = page.evaluate("rules => axe.run(document, {runOnly: rules})", rules)["violations"]
    return [f"{one['id']}: {node['html']}" for one in found for node in one["nodes"]]


def test_no_page_keeps_anybody_out_or_needs_sideways_scrolling(page: Page, addresses: dict[str, str]) -> None:
    for address in addresses.values():
        page.emulate_media(color_scheme="light")
        page.set_viewport_size({"width": 1200, "height": 900})
        page.goto(address)
        page.evaluate(AXE)
        assert violations(page) == [], address
        page.emulate_media(color_scheme="dark")
        assert violations(page, ["color-contrast"]) == [], address
        page.set_viewport_size({"width": 360, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), address
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("link", name="Jobs", exact=True).click()
    expect(page.get_by_role("heading", name="Jobs", level=1)).to_be_visible()


def test_change_appears_by_itself_and_what_is_typed_stays(page: Page, http: Caller) -> None:
    page.goto("/jobs")
    expect(page.get_by_text("No job.")).to_be_visible()
    page.get_by_label("Search", exact=True).fill("state:dea")
    job_id = http.enqueued()
    expect(page.locator(f"#job-{job_id}")).to_be_visible()
    expect(page.get_by_label("Search", exact=True)).to_have_value("state:dea")
    page.keyboard.press("Escape")
    page.get_by_label("Search", exact=True).blur()
    page.keyboard.press("n")
    http.post(f"/api/v1/jobs/{job_id}/cancel", {"mode": "hard"})
    expect(page.locator(f"#job-{job_id}.chosen .state")).to_have_text("cancelled")


def test_dead_letter_is_requeued_in_seven_keys(page: Page, dsn: str, http: Caller, db: Harness) -> None:
    World(http).letter()
    count_causes(dsn)
    page.goto("/")
    for keys, heading in (("gd", "Dead letters"), ("nn\n", "Dead letter 1"), ("a\n", "Job 2")):
        for key in keys:
            page.keyboard.press("Enter" if key == "\n" else key)
        expect(page.get_by_role("heading", name=heading, level=1)).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="runs again as job")).to_be_visible()
    assert db.value("select requeued_as is not null from tenure.dead_letter") is True


def test_cause_is_requeued_in_six_keys_or_three_clicks(page: Page, dsn: str, http: Caller, db: Harness) -> None:
    World(http).letter(), World(http).letter()
    count_causes(dsn)
    page.goto("/")
    for keys, heading in ((("n", "Enter"), "Cause "), (("a", "Enter"), "Operation 1"), (("a", "Enter"), "Operation 1")):
        for key in keys:
            page.keyboard.press(key)
        expect(page.get_by_role("heading", name=heading, level=1)).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="Operation 1 is started")).to_be_visible()
    work_on_operations(dsn)
    expect(page.locator("#live").get_by_text("2 done, 0 left")).to_be_visible()
    assert db.value("select count(*) from tenure.dead_letter where requeued_as is not null") == 2
    World(http).letter()
    count_causes(dsn)
    page.goto("/")
    page.get_by_role("region", name="Causes").get_by_role("link").click()
    page.get_by_role("button", name="Requeue all of this cause…", exact=True).click()
    expect(page.get_by_text("requeue 1 dead letters")).to_be_visible()
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("status").filter(has_text="Operation 2 is started")).to_be_visible()


def test_many_jobs_are_cancelled_stopped_and_gone_on_with(page: Page, dsn: str, http: Caller) -> None:
    jobs = [http.enqueued(queue=queue) for queue in ("a", "a", "b")]
    page.goto("/jobs?q=queue:a")
    page.get_by_label("Search", exact=True).fill("queue:b")  # not sent: the list shows queue a
    page.get_by_text("Do something to all that match").click()
    page.get_by_role("button", name="Cancel all that match…").click()
    expect(page.get_by_text("cancel 2 jobs")).to_be_visible()
    page.on("dialog", lambda asked: asked.accept())
    page.get_by_role("button", name="Start").click()
    page.get_by_role("button", name="Stop").click()
    work_on_operations(dsn)
    expect(page.get_by_text("0 done, 2 left")).to_be_visible()
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    work_on_operations(dsn)
    expect(page.get_by_text("2 done, 0 left")).to_be_visible()
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    assert [http.get(f"/api/v1/jobs/{one}")["state"] for one in jobs] == ["cancelled", "cancelled", "queued"]


def test_chart_is_drawn_and_drawn_again_when_its_numbers_change(page: Page, http: Caller) -> None:
    World(http).done()
    page.goto("/")
    for chart in "throughput", "failures", "wait", "run":
        expect(page.locator(f"#chart-{chart} canvas")).to_be_visible()
    total = """total => JSON.parse(document.getElementById('numbers').dataset.numbers).enqueued
        .reduce((sum, one) => sum + one) === total"""
    page.wait_for_function(total, arg=1)
    ink = "one => one.toDataURL()"
    before = page.locator("#chart-throughput canvas").evaluate(ink)
    for _ in range(9):
        http.enqueued()
    page.wait_for_function(total, arg=10)
    expect(page.locator("#chart-throughput canvas")).to_have_count(1)
    page.wait_for_function(
        "before => document.querySelector('#chart-throughput canvas').toDataURL() !== before", arg=before
    )
    page.get_by_text("As a table").click()
    expect(page.get_by_role("region", name="Jobs by minute").get_by_role("row")).not_to_have_count(0)


def test_wrong_json_is_not_sent(page: Page, http: Caller) -> None:
    page.goto(f"/jobs/{World(http).done()}")
    page.get_by_text("Edit the payload and run it again").click()
    text = page.get_by_label("Payload as JSON")
    text.fill('{"to": ')
    page.get_by_role("button", name="Run again with this payload").click()
    assert text.evaluate("one => one.validationMessage").startswith("This is no JSON")
    text.fill('{"to": "b@c.d"}')
    page.get_by_role("button", name="Run again with this payload").click()
    expect(page.get_by_role("status").filter(has_text="runs again as job 2")).to_be_visible()
    assert http.get("/api/v1/jobs/2")["payload"] == {"to": "b@c.d"}


def test_keys_are_shown_and_take_no_letter_from_a_text(page: Page) -> None:
    page.goto("/")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    page.goto("/jobs")
    page.keyboard.press("/")
    page.keyboard.type("type:g?j")
    expect(page.get_by_label("Search", exact=True)).to_have_value("type:g?j")


def test_cancel_asks_before_it_is_done(page: Page, http: Caller) -> None:
    job_id = http.enqueued()
    page.goto(f"/jobs/{job_id}")
    page.once("dialog", lambda asked: asked.dismiss())
    page.get_by_role("button", name="Cancel").click()
    assert http.get(f"/api/v1/jobs/{job_id}")["state"] == "queued"
    page.once("dialog", lambda asked: asked.accept())
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("status").filter(has_text="the cancel is done")).to_be_visible()
    assert http.get(f"/api/v1/jobs/{job_id}")["state"] == "cancelled"


def test_state_of_a_drawing_leads_to_its_jobs(page: Page, http: Caller) -> None:
    job_id = http.enqueued("gate_b2")
    page.goto("/contracts/gate_b2")
    page.locator('.drawing [data-state="queued"]').click()
    expect(page.locator(f"#job-{job_id}")).to_be_visible()
    assert set(page.get_by_label("Search", exact=True).input_value().split()) == {"contract:gate_b2", "state:queued"}
    page.goto("/contracts/gate_b2")
    page.locator('.drawing [data-from="queued"] .label').first.click()
    expect(page.get_by_role("heading", name="Jobs", level=1)).to_be_visible()


def test_stored_texts_do_nothing_but_appear(page: Page, dsn: str, http: Caller, db: Harness) -> None:
    addresses = {"/", "/jobs", "/dead-letters", "/queues", "/workers", "/flows", "/datasets", "/schedules"}
    for number, text in enumerate(HOSTILE):
        name = text.replace("\a", "").replace("\x1b", "")[:90]
        fields = {"queue": name, "tenant_id": name, "correlation_id": name, "trace_id": name}
        job = {"type": name, "payload": {"text": text, text: [text]}, "idempotency_key": f"{name}{number}", **fields}
        job_id = http.client.post("/api/v1/jobs", json=job).raise_for_status().json()["id"]
        claimed = {"queues": [name], "worker_id": name, "limit": 1}
        (claim,) = http.client.post("/api/v1/claims", json=claimed).raise_for_status().json()["claims"]
        proof = {"claims": claim["claims"], "lease_token": claim["lease_token"]}
        error = {"type": text, "message": text, "code": name, "stage": name, "retryable": False, "stack": text}
        http.client.post(f"/api/v1/jobs/{job_id}/fail", json={**proof, "error": error}).raise_for_status()
        http.client.post("/api/v1/queues/pause", json={"queue": name, "reason": text}).raise_for_status()
        letter = http.get(f"/api/v1/jobs/{job_id}")["dlq_id"]
        nodes = [{"name": name, "type": name}]
        flow = http.client.post("/api/v1/flows", json={"name": name, "nodes": nodes, "tenant_id": name})
        addresses |= {f"/jobs/{job_id}", f"/dead-letters/{letter}", f"/flows/{flow.raise_for_status().json()['id']}"}
        if number % 6 == 0:
            body = {"kind": "dead_letters", "verb": "discard", "q": "status:open", "reason": text[:190]}
            made = http.client.post("/api/v1/operations", json=body).raise_for_status().json()["id"]
            addresses |= {"/operations", f"/operations/{made}"}
    count_causes(dsn)
    addresses |= {f"/causes/{one['fingerprint']}" for one in http.get("/api/v1/dlq/groups")["groups"]}
    page.set_viewport_size({"width": 360, "height": 740})
    for address in sorted(addresses):
        page.goto(address)
        assert page.evaluate("window.hacked") is None, address
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), address
    text = page.goto("/jobs").text()  # type: ignore[union-attr]
    assert "\u202e" not in text
