"""Forms: each does one call of the API, as the person who sends it, and nothing else can send one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tenure.dashboard.actions import ACTIONS
from tests.dashboard.conftest import Browser, notice
from tests.harness import Harness
from tests.http.conftest import Caller, new_key
from tests.http.inventory import World

Fields = dict[str, str]


def _schedule(world: World) -> Fields:
    body = {"application": "shop", "cron": "0 3 * * *", "job": {"type": "t"}}
    world.http.client.put("/api/v1/schedules/report", json=body).raise_for_status()
    return {"id": "report", "application": "shop"}


def _asked_to_discard(world: World) -> Fields:
    letter = world.letter("gate_b2")
    world.http.post(f"/api/v1/dlq/items/{letter}/discard", {"reason": "old", "person": "ann"})
    return {"id": letter}


def _flow(world: World) -> Fields:
    nodes = [{"name": "a", "type": "t"}]
    return {"id": str(world.http.post("/api/v1/flows", {"name": "nightly", "nodes": nodes}, status=201)["id"])}


def _failed_flow(world: World) -> Fields:
    flow = _flow(world)
    world.http.post(f"/api/v1/flows/{flow['id']}/cancel", {})
    return flow


def _dataset(world: World) -> Fields:
    world.http.client.put("/api/v1/datasets/prices", json={}).raise_for_status()
    made = world.http.post("/api/v1/datasets/prices/generations", {})
    return {"id": "prices", "generation": str(made["number"]), "reason": "a new feed"}


def _switched_dataset(world: World) -> Fields:
    made = _dataset(world)
    world.http.post("/api/v1/dataset-cutovers", {"generations": {"prices": int(made["generation"])}})
    return {"id": "prices", "datasets": "prices", "reason": "wrong"}


#: What each form says; a form that is new fails the tests of all until it has a line here.
FORMS: dict[str, Callable[[World], Fields]] = {
    "cancel-job": lambda world: {"id": world.job(), "mode": "soft", "reason": "not needed"},
    "requeue-job": lambda world: {"id": world.done()},
    "move-job": lambda world: {"id": world.job(), "queue": "other"},
    "transition-job": lambda world: {"id": world.job(), "to": "cancelled", "reason": "by hand"},
    "requeue-letter": lambda world: {"id": world.letter()},
    "discard-letter": lambda world: {"id": world.letter(), "reason": "old"},
    "approve-letter": _asked_to_discard,
    "pause-queue": lambda world: {"queue": "mail", "reason": "repair"},
    "resume-queue": lambda world: {"queue": "mail"},
    "cancel-flow": _flow,
    "resume-flow": _failed_flow,
    "cut-over": _dataset,
    "roll-back": _switched_dataset,
    "mute-alarms": lambda world: {"kind": "xmin-pinned", "minutes": "60", "reason": "a dump"},
    "test-alarms": lambda world: {"id": ""},
    "pause-schedule": _schedule,
    "resume-schedule": _schedule,
    "run-schedule": _schedule,
}
#: With a key of another tenant these do something to that tenant alone.
OF_ONE_TENANT = {"mute-alarms"}
EVERYTHING = """
select (select count(*) from tenure.event), (select count(*) from tenure.job), (select count(*) from tenure.queue),
       (select md5(string_agg(x::text, ',' order by id)) from tenure.dead_letter x),
       (select md5(string_agg(x::text, ',' order by id)) from tenure.job x),
       (select md5(string_agg(x::text, ',')) from tenure.schedule x),
       (select count(*) from tenure.dataset_switch),
       (select md5(string_agg(x::text, ',' order by id)) from tenure.flow x)
"""


def test_every_form_has_its_line() -> None:
    assert set(FORMS) == set(ACTIONS)


@pytest.mark.parametrize("action", ACTIONS)
def test_form_does_what_it_says_as_its_person(
    dsn: str, url: str, browser: Browser, http: Caller, db: Harness, action: str
) -> None:
    fields = FORMS[action](World(http))
    key = new_key(dsn, "bob", "read", "operate", "approve", person="bob")
    browser.log_in(key)
    failed, text = notice(browser.send(action, fields))
    assert not failed, text
    before = db.sql(EVERYTHING)
    failed, _ = notice(browser.send("cancel-job", {"id": "999"}))
    assert failed
    assert db.sql(EVERYTHING) == before


@pytest.mark.parametrize("action", ACTIONS)
def test_form_is_refused_to_everybody_else(
    dsn: str, url: str, browser: Browser, http: Caller, db: Harness, action: str
) -> None:
    fields = FORMS[action](World(http))
    reader = new_key(dsn, "reader", "read")
    of_another = new_key(dsn, "other", "read", "operate", "approve", tenant="other", person="eve")
    before = db.sql(EVERYTHING)
    # Without a session: 401, or 403 while the dispatcher has not noticed the first key.
    assert browser.client.post(f"/actions/{action}", data=fields).status_code in (401, 403)
    browser.log_in(reader)
    browser.send(action, fields, status=403)
    browser.log_in(new_key(dsn, "bob", "operate", "approve", "read", person="bob"))
    assert browser.client.post(f"/actions/{action}", data=fields).status_code == 403  # without the token
    wrong = {**fields, "form_token": "0" * 64}
    assert browser.client.post(f"/actions/{action}", data=wrong).status_code == 403
    right = {**fields, "form_token": browser.form_token()}
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert browser.client.post(f"/actions/{action}", data=right, headers=headers).status_code == 403
    stranger = Browser(url)
    stranger.log_in(of_another)
    if action in OF_ONE_TENANT:
        return
    right = {**fields, "form_token": stranger.form_token()}
    response = stranger.client.post(f"/actions/{action}", data=right)
    assert response.status_code == 403 or notice(response.text)[0]  # another tenant's schedule is not found
    assert db.sql(EVERYTHING) == before


def test_form_leads_back_to_pages_of_the_dashboard_alone(browser: Browser, http: Caller) -> None:
    for back in "https://evil.example/", "//evil.example", "/\\evil.example", "jobs", "":
        token = browser.form_token()
        response = browser.client.post(
            "/actions/pause-queue", data={"form_token": token, "queue": "q", "back": back}, follow_redirects=False
        )
        assert response.headers["location"] == "/"


def test_notice_is_shown_once(browser: Browser) -> None:
    assert notice(browser.send("pause-queue", {"queue": "mail"}, back="/queues")) == (False, "Queue mail is paused.")
    assert 'class="notice' not in browser.get("/queues")


def test_forms_that_are_not_there_or_not_forms_are_refused(browser: Browser) -> None:
    browser.send("nothing", {}, status=404)
    token = browser.form_token()
    assert browser.client.post("/actions/pause-queue", json={"form_token": token}).status_code == 422
    assert browser.client.get("/actions/pause-queue").status_code == 405
