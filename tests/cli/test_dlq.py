"""`tenure dlq` as a person runs it: find a dead letter, run it again, or throw it away, alone or with another."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable
from dataclasses import replace
from textwrap import indent
from typing import Any

import pytest

from tenure.errors import BadInput, UnknownContract
from tenure.jobs.job import Failure, NewJob
from tenure.postgres.dead_letters import DeadLetter
from tenure.postgres.store import Store
from tests.cli.conftest import Asking
from tests.harness import Harness

STACK = """Traceback (most recent call last):
  File "/srv/shop.py", line 7, in send
    raise ValueError("odd")
ValueError: odd
"""
BROKEN = Failure("broken for good", type="ValidationError", code="BROKEN", retryable=False)


async def letter(store: Store, contract: str = "standard", tenant: str = "acme") -> DeadLetter:
    """The dead letter of a job that failed for good."""
    made = await store.enqueue(NewJob("mail.send", {"to": "ada"}, contract, tenant_id=tenant))
    (job,) = await store.claim(contract, worker="w1")
    assert job.id == made.job_id
    await store.start(job.held)
    await store.fail(job.held, BROKEN)
    return await store.letters.of_job(job.id)


async def test_list_shows_the_newest_first_a_page_at_a_time(store: Store, ask: Asking) -> None:
    ids = [str((await letter(store)).id) for _ in range(5)][::-1]
    first = ask.said("dlq", "list", "--limit", "2")
    assert ([one["id"] for one in first["dead_letters"]], first["next"]) == (ids[:2], ids[1])
    second = ask.said("dlq", "list", "--limit", "2", "--after", first["next"])
    assert ([one["id"] for one in second["dead_letters"]], second["next"]) == (ids[2:4], ids[3])
    last = ask.said("dlq", "list", "--limit", "2", "--after", second["next"])
    assert ([one["id"] for one in last["dead_letters"]], last["next"]) == (ids[4:], None)
    page = ask.run("dlq", "list", "--limit", "4")
    assert [line.split()[0] for line in page.stdout.splitlines()] == ["id", *ids[:4]]
    assert page.stderr == f"there are more. Next: tenure dlq list --limit 4 --after {ids[3]}\n"
    assert ask.text("dlq", "list", "--limit", "5").count("\n") == 6, "a full last page promises no other"


async def test_a_list_can_be_narrowed_in_every_way(store: Store) -> None:
    made = [
        await letter(store, contract, tenant) for contract in ("standard", "gate_b2") for tenant in ("acme", "zeta")
    ]
    made += [await letter(store), await letter(store, "reliability")]
    await store.letters.requeue(made[0].id, actor="ada")
    await store.letters.request_discard(made[5].id, person="ada", reason="spam")
    letters = [await store.letters.show(one.id) for one in made][::-1]
    for contract in (None, "standard", "gate_b2", "phase27"):
        for tenant in (None, "acme", "zeta", "nobody"):
            for status in (None, "open", "requeued", "discarded"):
                for after in (None, letters[1].id):
                    found = await store.letters.list(contract=contract, tenant_id=tenant, status=status, after=after)
                    assert found == [
                        one for one in letters
                        if contract in (None, one.contract) and tenant in (None, one.tenant_id)
                        and status in (None, one.status) and (after is None or one.id < after)
                    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"contract": "nope"}, UnknownContract), ({"tenant_id": " "}, BadInput), ({"status": "lost"}, BadInput),
        ({"limit": 0}, BadInput), ({"after": 0}, BadInput),
    ],
)  # fmt: skip
async def test_a_list_that_cannot_be_meant_is_refused(store: Store, wrong: Any, error: type[BadInput]) -> None:
    with pytest.raises(error):
        await store.letters.list(**wrong)


async def test_the_commands_options_narrow_the_list(store: Store, ask: Asking) -> None:
    mine = await letter(store, "gate_b2", "zeta")
    await letter(store, "gate_b2", "acme")
    await letter(store, "standard", "zeta")
    said = ask.said("dlq", "list", "--contract", "gate_b2", "--tenant", "zeta", "--status", "open")
    assert [one["id"] for one in said["dead_letters"]] == [str(mine.id)]
    assert ask.refused("dlq", "list", "--contract", "nope")[0] == "E-UNKNOWN-CONTRACT"
    assert ask.run("dlq", "list", "--status", "lost").returncode == 2


def test_an_empty_list_is_no_failure(ask: Asking) -> None:
    assert ask.said("dlq", "list") == {"dead_letters": [], "next": None, "stopped": False}
    done = ask.run("dlq", "list")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no open dead letters. Next: tenure dlq list --all\n")
    assert ask.run("dlq", "list", "--all").stderr == "no dead letters\n"


async def test_show_says_what_was_set_aside_and_why(store: Store, ask: Asking) -> None:
    one = await letter(store, "gate_b2")
    said = ask.said("dlq", "show", str(one.id))
    assert set(said) == {*one._fields} - {"payload_json", "last_error_json"} | {"payload", "last_error"}
    assert (said["id"], said["job_id"], said["requeued_as"]) == (str(one.id), str(one.job_id), None)
    assert (said["payload"], said["last_error"]["code"], said["status"]) == ({"to": "ada"}, "BROKEN", "open")
    assert said["created_at"] == f"{one.created_at:%Y-%m-%dT%H:%M:%S.%fZ}"
    await store.letters.request_discard(one.id, person="ada", reason="a duplicate")
    card = ask.text("dlq", "show", str(one.id))
    assert card.startswith(f"dead letter {one.id}: mail.send\n")
    for line in (
        "status +open since ",
        rf"job +{one.job_id} \(contract gate_b2, tenant acme\)$",
        r"last error +ValidationError \[BROKEN\]: broken for good$",
        "claims +1, the last by w1$",
        'payload +{"to": "ada"}$',
        r"discard +asked for by ada at [-0-9]+ [:0-9]+ UTC: a duplicate$",
    ):
        assert re.search(rf"^  {line}", card, re.MULTILINE), f"{line} in:\n{card}"
    assert f"tenure dlq approve {one.id} --person NAME\n" in card


async def test_a_letter_is_run_again_once(store: Store, db: Harness, ask: Asking) -> None:
    one = await letter(store)
    said = ask.said("dlq", "requeue", str(one.id), "--actor", "ada")
    assert said["id"] == str(one.id)
    row = db.row(int(said["requeued_as"]))
    assert (row["state"], row["origin_letter"], row["created_by"]) == ("queued", one.id, "ada")
    code, message = ask.refused("dlq", "requeue", str(one.id))
    assert (code, message) == (
        "DLQ_REQUEUE_CONFLICT",
        f"dead letter {one.id} was already run again as job {row['id']}; nothing was made. "
        f"Next: tenure jobs show {row['id']}, and to run that one again say --again (again=True)",
    )
    assert db.value("select count(*) from tenure.job") == 1


async def test_one_person_discards_where_the_contract_wants_no_second(store: Store, ask: Asking) -> None:
    one = await letter(store)
    text = ask.text("dlq", "discard", str(one.id), "--reason", "spam", "--person", "ada")
    assert text == f"dead letter {one.id} is discarded\n"
    closed = await store.letters.show(one.id)
    assert (closed.status, closed.discard_asked_by, closed.discard_reason) == ("discarded", "ada", "spam")
    code, _ = ask.refused("dlq", "discard", str(one.id), "--reason", "again", "--person", "ada")
    assert code == "DLQ_DISCARD_CONFLICT"


async def test_a_discard_that_needs_two_is_never_approved_by_the_asker(store: Store, ask: Asking) -> None:
    one = str((await letter(store, "gate_b2")).id)
    code, message = ask.refused("dlq", "approve", one, "--person", "bob")
    assert code == "APPROVAL_REQUIRED"
    assert f"Next: tenure dlq discard {one} --reason TEXT --person NAME" in message
    text = ask.text("dlq", "discard", one, "--reason", "spam", "--person", "Ada")
    assert f"dead letter {one} stays open until another person than Ada agrees\n" in text
    assert f"Next: tenure dlq approve {one} --person NAME\n" in text
    before = await store.letters.show(int(one))
    assert ask.refused("dlq", "approve", one, "--person", " ADA", "--json") == (
        "APPROVAL_REQUIRED",
        "Ada requested the discard; another person must approve",
    )
    assert await store.letters.show(int(one)) == before
    said = ask.said("dlq", "approve", one, "--person", "Bob")
    assert (said["status"], said["discard_asked_by"], said["discard_approved_by"]) == ("discarded", "Ada", "Bob")


@pytest.mark.req("S4-34")
async def test_show_tells_who_asked_for_a_discard_who_agreed_why_and_when(
    store: Store, db: Harness, ask: Asking
) -> None:
    one = (await letter(store, "gate_b2")).id
    await store.letters.request_discard(one, person="Ada", reason="spam")
    await store.letters.approve_discard(one, person="Bob")
    times = "discard_asked_at = '2026-02-21 08:30:00Z', discard_approved_at = '2026-02-22 09:45:00Z'"
    db.sql(f"update tenure.dead_letter set {times} where id = %s", one)
    said = ask.said("dlq", "show", str(one))
    assert [said[f"discard_{name}"] for name in ("asked_by", "approved_by", "reason")] == ["Ada", "Bob", "spam"]
    assert said["discard_asked_at"].startswith("2026-02-21T08:30:00")
    assert said["discard_approved_at"].startswith("2026-02-22T09:45:00")
    asked, approved = "asked for by Ada at 2026-02-21 08:30:00 UTC", "approved by Bob at 2026-02-22 09:45:00 UTC"
    assert f"{asked}, {approved}: spam" in ask.text("dlq", "show", str(one))


async def test_a_discard_wants_a_reason_and_a_person(store: Store, ask: Asking) -> None:
    one = await letter(store)
    assert ask.refused("dlq", "discard", str(one.id), "--reason", " ", "--person", "ada")[0] == "E-BAD-INPUT"
    assert ask.run("dlq", "discard", str(one.id), "--person", "ada").returncode == 2
    assert ask.run("dlq", "approve", str(one.id)).returncode == 2
    assert await store.letters.show(one.id) == one


async def test_discard_is_asked_for_by_the_operating_systems_user_unless_told_otherwise(
    store: Store, ask: Asking
) -> None:
    one = await letter(store, "gate_b2")
    said = ask.said("dlq", "discard", str(one.id), "--reason", "spam")
    assert (said["discard_asked_by"], said["status"]) == (pwd.getpwuid(os.getuid()).pw_name, "open")


async def test_show_prints_the_traceback_line_by_line(store: Store, ask: Asking) -> None:
    await store.enqueue(NewJob("mail.send"))
    (job,) = await store.claim("standard", worker="w1")
    await store.fail(job.held, replace(BROKEN, stack=STACK))
    one = await store.letters.of_job(job.id)
    card = ask.text("dlq", "show", str(one.id))
    assert f"\n{indent(STACK, '  ')}Next: tenure dlq requeue {one.id}\n" in card


_CALLS = {
    "show": (), "requeue": (), "discard": ("--reason", "spam", "--person", "ada"), "approve": ("--person", "ada"),
}  # fmt: skip


@pytest.mark.parametrize("command", _CALLS)
def test_an_unknown_letter_is_refused_with_its_code(ask: Asking, command: str) -> None:
    code, message = ask.refused("dlq", command, "4711", *_CALLS[command], "--json")
    assert code == "DLQ_ITEM_NOT_FOUND"
    assert "4711" in message


@pytest.mark.parametrize("command", _CALLS)
def test_a_letter_that_is_no_number_is_refused_before_anything_is_started(
    at_once: Callable[..., tuple[int, str, str]], command: str
) -> None:
    wanted = (1, "", "E-BAD-INPUT: dead letter must be a whole number, not '4x'\n")
    assert at_once("dlq", command, "4x", *_CALLS[command], "--json") == wanted
    assert at_once("dlq", "list", "--after", "4x")[2].startswith("E-BAD-INPUT: after must be a whole number")


async def test_groups_show_causes_and_then_one_of_them(store: Store, ask: Asking) -> None:
    letters = [await letter(store) for _ in range(3)]
    assert "3 changes of dead letters are not counted yet" in ask.run("dlq", "groups").stderr
    while await store.groups.count_changes():
        pass
    said = ask.said("dlq", "groups")
    (group,) = said["groups"]
    assert (group["open"], group["letters"], group["letter_id"], said["uncounted"]) == (3, 3, str(letters[-1].id), 0)
    shown = ask.run("dlq", "groups", "--tenant", "acme")
    assert shown.stdout.splitlines()[1].startswith(f"{group['fingerprint']}  3     3 ")
    assert shown.stderr == f"Next: tenure dlq groups {group['fingerprint']}\n"
    card = ask.text("dlq", "groups", group["fingerprint"])
    assert f"group {group['fingerprint']}: ValidationError [BROKEN]: broken for good" in card
    assert re.search(r"releases +unknown: 3 open of 3$", card, re.MULTILINE)
    assert "no failure names a release: set TENURE_RELEASE" in card
    assert re.search(r"workers +w1: 3 open of 3$", card, re.MULTILINE)
    assert f"tenure dlq requeue group:{group['fingerprint']} --dry-run" in card
    for one in letters:
        await store.letters.requeue(one.id, actor="ada")
    while await store.groups.count_changes():
        pass
    assert "requeue" not in ask.text("dlq", "groups", group["fingerprint"]), "nothing is left to run again"
    assert [one["status"] for one in ask.said("dlq", "list", "--all")["dead_letters"]] == ["requeued"] * 3
    assert ask.said("dlq", "list")["dead_letters"] == []
    assert ask.said("dlq", "groups", "--tenant", "zeta")["groups"] == []
    assert ask.refused("dlq", "groups", "nope")[0] == "DLQ_GROUP_NOT_FOUND"
