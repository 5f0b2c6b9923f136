"""`tenure keys` as a person runs it: make one, keep it, look who has one, take it back."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable

from tenure.jobs.api_key import hash_key
from tenure.postgres.store import Store
from tests.cli.conftest import Asking
from tests.harness import Harness

ME = pwd.getpwuid(os.getuid()).pw_name
MOMENT = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"


async def test_a_new_key_is_alone_on_stdout_and_explained_on_stderr(store: Store, ask: Asking) -> None:
    done = ask.run("keys", "create", "shop\x1b[31m", "--scope", "work", "--scope", "enqueue")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"tenure_[\w-]{43}\n", done.stdout)
    found = await store.keys.find(hash_key(done.stdout.strip()))
    assert found is not None
    assert (found.live, found.key.scopes, found.key.created_by) == (True, ("enqueue", "work"), ME)
    assert done.stderr.splitlines() == [
        f"key {found.key.id} (shop [31m) is shown this once: only its hash is kept",
        "scopes enqueue, work",
        "bound to no tenant: it is for the jobs of all. To bind one, make it with --tenant NAME",
        f"valid until it is revoked: tenure keys revoke {found.key.id}",
        "Next: send it to the dispatcher with each request, as the header Authorization: Bearer KEY",
    ]


async def test_a_key_for_a_tenant_a_person_and_a_time(store: Store, ask: Asking) -> None:
    given = ("--scope", "approve", "--tenant", "acme", "--person", "Ada Lovelace", "--expires", "90d")
    done = ask.run("keys", "create", "Ada's", *given, "--actor", "bob")
    lines = done.stderr.splitlines()
    assert lines[1:3] == [
        "scope approve, held by Ada Lovelace", "bound to tenant acme: it is for the jobs of no other",
    ]  # fmt: skip
    assert re.fullmatch(rf"valid until {MOMENT}: tenure keys revoke \d+", lines[3])
    found = await store.keys.find(hash_key(done.stdout.strip()))
    assert found is not None
    assert found.key.expires_at is not None
    assert (found.key.expires_at - found.key.created_at).days == 90
    assert (found.key.tenant_id, found.key.person, found.key.created_by) == ("acme", "Ada Lovelace", "bob")


async def test_the_list_says_what_each_key_is_for_and_whether_it_is_live(
    store: Store, ask: Asking, db: Harness
) -> None:
    done = ask.run("keys", "list")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "no key was ever made. Next: tenure keys create NAME --scope work\n"
    for name, scopes, tenant, expires in (
        ("shop", ["work"], None, None), ("old", ["work"], None, 60), ("new", ["work"], None, 60),
        ("gone", ["approve", "operate"], "acme", None),
    ):  # fmt: skip
        await store.keys.create(name, scopes, tenant, "Ada" if tenant else None, "bob", expires)
    db.sql("update tenure.api_key set expires_at = clock_timestamp() where name = 'old'")
    gone = (await store.keys.list())[-1].key
    await store.keys.revoke(gone.id, "eve")
    head, *rows = ask.text("keys", "list").splitlines()
    assert re.split(r"  +", head) == [
        "id", "name", "key", "scopes", "tenant", "person", "made (UTC)", "by", "status",
    ]  # fmt: skip
    assert [re.split(r"  +", row)[-1] for row in rows[:1]] == ["live"]
    assert re.search(rf"  expired at {MOMENT}$", rows[1])
    assert re.search(rf"  live until {MOMENT}$", rows[2])
    shown = rf"{gone.id} +gone +{re.escape(gone.hint)}… +operate,approve +acme +Ada +\S+ \S+ +bob +revoked by eve at "
    assert re.fullmatch(shown + MOMENT, rows[3])
    said = ask.said("keys", "list")["keys"]
    assert [key["live"] for key in said] == [True, False, True, False]
    assert {**said[3], "created_at": None, "revoked_at": None} == {
        "id": str(gone.id), "name": "gone", "hint": gone.hint, "scopes": ["operate", "approve"], "tenant_id": "acme",
        "person": "Ada", "created_at": None, "created_by": "bob", "expires_at": None, "revoked_at": None,
        "revoked_by": "eve", "live": False,
    }  # fmt: skip


async def test_a_key_is_revoked_once_and_programs_are_told_by_whom(store: Store, ask: Asking) -> None:
    said = ask.said("keys", "create", "shop", "--scope", "work")
    text = said.pop("key")
    found = await store.keys.find(hash_key(text))
    assert found is not None
    assert (said["id"], said["live"], said["tenant_id"]) == (str(found.key.id), True, None)
    named = f"key {said['id']} (shop, {text[:11]}…)"
    assert ask.text("keys", "revoke", said["id"]) == f"{named} is revoked\n"
    again = ask.text("keys", "revoke", said["id"], "--actor", "eve")
    assert re.fullmatch(rf"{re.escape(named)} was revoked already, by {ME} at {MOMENT}\n", again)
    told = ask.said("keys", "revoke", said["id"])
    assert (told["new"], told["live"], told["revoked_by"]) == (False, False, ME)
    code, message = ask.refused("keys", "revoke", str(found.key.id + 1))
    assert (code, message) == ("KEY_NOT_FOUND", f"there is no key {found.key.id + 1}. Next: tenure keys list")


def test_a_wrong_call_is_refused_before_anything_is_started(at_once: Callable[..., tuple[int, str, str]]) -> None:
    for arguments, message in {
        (
            "create",
            "x",
            "--scope",
            "root",
        ): "E-BAD-INPUT: there is no scope 'root'. Next: give one or more of read, enqu",
        ("create", "x", "--scope", "approve"): "E-BAD-INPUT: a key that approves needs a person",
        ("create", " ", "--scope", "work"): "E-BAD-INPUT: key name must be a non-empty string",
        ("create", "x", "--scope", "work", "--expires", "soon"): "E-BAD-INPUT: --expires is a span of time like 90d",
        ("create", "x", "--scope", "work", "--expires", "0s"): "E-BAD-INPUT: lifetime in milliseconds is 0",
        ("revoke", "shop"): "E-BAD-INPUT: key must be a whole number",
    }.items():
        code, said, told = at_once("keys", *arguments)
        assert (code, said, told[: len(message)]) == (1, "", message)
    assert at_once("keys", "create", "x")[0] == 2, "a key is for something"
