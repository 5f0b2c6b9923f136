"""Forms: each does one call of the API, as the person who sends it, and nothing else can send one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import unescape

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


def _many(world: World) -> Fields:
    world.job()
    return {"kind": "jobs", "verb": "cancel", "q": "queue:world", "mode": "hard", "reason": "not needed"}


#: What each form says; a form that is new fails the tests of all until it has a line here.
FORMS: dict[str, Callable[[World], Fields]] = {
    "cancel-job": lambda world: {"id": world.job(), "mode": "soft", "reason": "not needed"},
    "requeue-job": lambda world: {"id": world.done()},
    "retry-job": lambda world: {"id": world.snoozed(), "reason": "the mail server is back"},
    "move-job": lambda world: {"id": world.job(), "queue": "other"},
    "transition-job": lambda world: {"id": world.job(), "to": "cancelled", "reason": "by hand"},
    "requeue-letter": lambda world: {"id": world.letter()},
    "discard-letter": lambda world: {"id": world.letter(), "reason": "old"},
    "approve-letter": _asked_to_discard,
    "preview-operation": _many,
    "collect-operation": lambda world: {"id": world.operation()},
    "start-operation": lambda world: {"id": world.operation(), "per_second": "0.01"},
    "delete-preview": lambda world: {"id": world.operation()},
    "abort-operation": lambda world: {"id": world.operation("start")},
    "resume-operation": lambda world: {"id": world.operation("start", "abort")},
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
OF_ONE_TENANT = {"mute-alarms", "preview-operation"}
EVERYTHING = """
select (select count(*) from tenure.event), (select count(*) from tenure.job), (select count(*) from tenure.queue),
       (select md5(string_agg(x::text, ',' order by id)) from tenure.dead_letter x),
       (select md5(string_agg(x::text, ',' order by id)) from tenure.job x),
       (select md5(string_agg(x::text, ',')) from tenure.schedule x),
       (select count(*) from tenure.dataset_switch),
       (select md5(string_agg(x::text, ',' order by id)) from tenure.operation x),
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


def test_form_for_many_acts_on_exactly_its_search(browser: Browser, http: Caller) -> None:
    for queue in "a", "a", "b":
        http.post(f"/api/v1/jobs/{http.enqueued(queue=queue)}/cancel", {"mode": "hard"})
    page = browser.get("/jobs?q=queue:a")
    assert '<input type="hidden" name="q" value="queue:a">' in page
    shown = browser.send(
        "preview-operation", {"kind": "jobs", "verb": "requeue", "q": "queue:a", "changes": "n=7\nuser.id=x"}
    )
    assert notice(shown) == (False, "Nothing is done yet: look at the preview, then start it.")
    (operation,) = http.get("/api/v1/operations")["operations"]
    assert (operation["total"], operation["state"], operation["query"]) == (2, "preview", "queue:a")
    assert operation["options"] == {"changes": [[["n"], 7], [["user", "id"], "x"]]}
    assert f"Operation {operation['id']}" in shown
    failed, _ = notice(browser.send("start-operation", {"id": operation["id"], "per_second": "fast"}))
    assert failed
    assert "Do something to all that match" not in browser.get("/jobs?q=nothing:a")


def test_operation_offers_what_its_reader_may_do(dsn: str, url: str, browser: Browser, http: Caller) -> None:
    letter = World(http).letter()
    body = {"kind": "dead_letters", "verb": "discard", "q": "", "reason": "old"}
    path = f"/operations/{http.post('/api/v1/operations', body, status=201)['id']}"
    page = browser.get(path)  # while no key exists: the person says who decides
    assert 'name="person"' in page
    assert f'href="/dead-letters/{letter}"' in page
    for scopes, may_start in ((("read", "approve"), True), (("read", "operate"), False), (("read",), False)):
        key = new_key(dsn, "-".join(scopes), *scopes, person="ann")
        browser.log_in(key)
        page = browser.get(path)
        assert 'name="person"' not in page
        assert ("/actions/start-operation" in page) is may_start


@pytest.mark.parametrize("of_letter", [False, True])
def test_requeue_takes_an_edited_payload(browser: Browser, http: Caller, of_letter: bool) -> None:
    payload = {"to": "a\u202eb", "n": [1, 2.5, None], "text": "<textarea>"}
    job_id = http.enqueued(payload=payload, max_attempts=1)
    (claim,) = http.claimed()
    proof = {"claims": claim["claims"], "lease_token": claim["lease_token"]}
    error = {"type": "PermanentError", "message": "no", "retryable": False}
    http.post(f"/api/v1/jobs/{job_id}/fail", {**proof, "error": error})
    one = http.get(f"/api/v1/jobs/{job_id}")["dlq_id"] if of_letter else job_id
    action, path = ("requeue-letter", f"/dead-letters/{one}") if of_letter else ("requeue-job", f"/jobs/{one}")
    found = re.search(r"data-json[^>]*>\n(.*?)</textarea>", browser.get(path), re.DOTALL)
    assert found is not None
    assert "\u202e" not in found[1]
    text = unescape(found[1])
    assert json.loads(text) == payload
    for wrong in "{", "NaN", "null", "[" * 100_000:
        failed, said = notice(browser.send(action, {"id": one, "payload": wrong}, back=path))
        assert failed, said
    browser.send(action, {"id": one, "payload": text.replace("2.5", "7")})
    (newest, _) = http.get("/api/v1/jobs")["jobs"]
    assert http.get(f"/api/v1/jobs/{newest['id']}")["payload"] == {**payload, "n": [1, 7, None]}
