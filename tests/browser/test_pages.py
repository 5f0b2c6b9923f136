"""Pages as people use them: live, by keyboard, on a phone, with every text that somebody may store."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest
from playwright.sync_api import Dialog, Page, expect

from tenure.contracts import BUILT_IN
from tenure.dashboard.page_table import PAGES
from tests.browser.conftest import count_causes, work_on_operations
from tests.browser.hostile import STRINGS, stage
from tests.browser.staged import stage as stage_shop
from tests.harness import Harness
from tests.http.conftest import Caller
from tests.http.inventory import World

AXE = (Path(__file__).parent / "axe.min.js").read_text()
#: WCAG 2.2 AA and what axe-core adds as good practice.
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


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
    return paths(names)


def paths(names: Mapping[str, str]) -> dict[str, str]:
    """The address of each page, with the name of what it is about; fails for a page that nobody has thought of."""
    return {page.path: page.before + names[page.before] if page.has_name else page.path for page in PAGES}


def violations(page: Page, rules: Sequence[str] = RULES) -> list[str]:
    """What axe-core finds on the page as it is shown."""
    found = page.evaluate("rules => axe.run(document, {runOnly: rules})", rules)["violations"]
    return [f"{one['id']}: {node['html']}" for one in found for node in one["nodes"]]


def check(page: Page, addresses: Iterable[str], *, in_dark: Sequence[str]) -> None:
    """No page keeps anybody out, in light and by these rules in dark, or needs sideways scrolling on a phone."""
    for address in addresses:
        page.emulate_media(color_scheme="light")
        page.set_viewport_size({"width": 1200, "height": 900})
        answer = page.goto(address)
        assert answer is not None
        assert answer.ok, address
        page.evaluate(AXE)
        assert violations(page) == [], address
        page.emulate_media(color_scheme="dark")
        assert violations(page, in_dark) == [], f"{address} in dark"
        page.set_viewport_size({"width": 360, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), address


def test_no_page_keeps_anybody_out_or_needs_sideways_scrolling(page: Page, addresses: dict[str, str]) -> None:
    check(page, addresses.values(), in_dark=["color-contrast"])
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("link", name="Jobs", exact=True).click()
    expect(page.get_by_role("heading", name="Jobs", level=1)).to_be_visible()


@pytest.mark.prove
@pytest.mark.timeout(600)
def test_no_page_of_a_busy_shop_keeps_anybody_out(page: Page, dsn: str, http: Caller) -> None:
    addresses = paths(stage_shop(dsn, http))
    verification = f"/api/v1{addresses['/contracts/{name}']}/verification"
    while http.get(verification)["state"] == "running":
        time.sleep(0.1)
    check(page, [*addresses.values(), "/contracts/purchase", "/?contract=standard&type=mail.send"], in_dark=RULES)


def test_every_page_of_the_menu_is_two_keys_away(page: Page) -> None:
    page.goto("/")
    for one in PAGES:
        if one.menu:
            page.keyboard.press("g")
            page.keyboard.press(one.key)
            expect(page.get_by_role("heading", name=one.title, level=1, exact=True)).to_be_visible()
            expect(page.locator(f'nav a[aria-current="page"][data-key="{one.key}"]')).to_have_count(1)


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


#: The pages of lists; those with many rows are followed to their end.
LISTS = [page.path for page in PAGES if not page.has_name and page.path not in ("/health", "/contracts")]


def read_all(page: Page, addresses: Iterable[str]) -> int:
    """Look at these pages and at those that follow them, wide and narrow; returns how many."""
    asked: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", dismiss)
    waiting, seen = list(addresses), set[str]()
    while waiting:
        address = waiting.pop()
        if address in seen:
            continue
        seen.add(address)
        page.goto(address)
        for width in (1200, 360):
            page.set_viewport_size({"width": width, "height": 740})
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{address} at {width}"
        found = page.evaluate("""() => ({
            hacked: window.hacked ?? null, here: location.pathname,
            hidden: getComputedStyle(document.body).display === 'none',
            links: [...document.querySelectorAll('a')].filter((one) => !/^https?:$/.test(one.protocol)).length,
            next: document.querySelector('a[rel=next]')?.getAttribute('href') ?? null,
            unseen: /[\u202a-\u202e\u2066-\u2069]/.test(document.body.innerText),
        })""")
        following = found.pop("next")
        here = address.partition("?")[0]
        assert found == {"hacked": None, "here": here, "hidden": False, "links": 0, "unseen": False}, address
        waiting += [following] if following else []
    assert asked == []
    return len(seen)


def test_stored_texts_do_nothing_but_appear(page: Page, dsn: str, http: Caller) -> None:
    assert len(set(STRINGS)) == 500
    # One of each seed's forms; `./dev prove` takes all of them.
    addresses = [*stage(dsn, http, STRINGS[::31])]
    assert {page.before for page in PAGES if page.has_name} - {f"/{one.split('/')[1]}/" for one in addresses} == {
        "/contracts/"
    }
    assert read_all(page, [*LISTS, *addresses[::2]]) > 25


@pytest.mark.prove
@pytest.mark.timeout(1_800)
def test_all_hostile_texts_do_nothing_but_appear(page: Page, dsn: str, http: Caller) -> None:
    addresses = [*stage(dsn, http, STRINGS)]
    assert read_all(page, [*LISTS, *addresses]) > 1_000
