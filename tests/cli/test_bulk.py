"""Commands on many jobs: several ids, or a search with preview; without a terminal nothing starts by itself."""

from __future__ import annotations

import json
import re

from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tests.cli.conftest import Asking
from tests.harness import Harness
from tests.postgres.test_letter_groups import broken, fail
from tests.postgres.test_operations import claimed, jobs, retrying


async def test_a_search_is_previewed_stored_and_run(store: Store, ask: Asking, db: Harness) -> None:
    ids = await jobs(store, 12)
    preview = ask.run("jobs", "cancel", "type:t", "queue:default", "--reason", "oops", "--dry-run")
    lines = preview.stdout.splitlines()
    assert lines[0] == "operation 1 (cancel jobs): 12 match type:t queue:default"
    assert [line.split()[:2] for line in lines[1:4]] == [["tenants", "default"], ["types", "t"], ["errors", "none"]]
    assert [line.split()[0] for line in lines[4:]] == ["from", "example", *map(str, reversed(ids[-3:]))]
    assert preview.stderr == "nothing is changed. Next: tenure operations run 1\n"
    assert db.value("select count(*) from tenure.job") == 12
    asked = ask.run("jobs", "cancel", "type:t")
    assert asked.stderr == "nothing is changed. Next: tenure operations run 2\n", (
        "nobody can say yes without a terminal"
    )
    await store.cancel(ids[0], actor="bob")
    assert ask.text("operations", "run", "1", "--actor", "ada") == (
        "operation 1 (cancel jobs) is done: 11 of 12 done, 1 skipped (CHANGED 1)\n"
    )
    assert db.value("select count(*) from tenure.job") == 0
    assert db.log(ids[1])[-1]["actor"] == "ada"
    said = ask.said("operations", "list")["operations"]
    assert [(one["id"], one["state"], one["done"], one["left"]) for one in said] == [
        ("2", "preview", 0, 12), ("1", "done", 11, 0)
    ]  # fmt: skip
    card = ask.text("operations", "show", "1")
    assert re.search(rf"skipped +{ids[0]}: CHANGED: it is no longer as it was", card)
    assert ask.refused("operations", "run", "1")[0] == "OPERATION_CONFLICT"
    assert ask.refused("operations", "show", "9")[0] == "OPERATION_NOT_FOUND"


async def test_a_yes_starts_at_once_and_detach_leaves_it_to_upkeep(store: Store, ask: Asking, db: Harness) -> None:
    await jobs(store, 3)
    done = ask.said("jobs", "move", "type:t", "--queue", "slow", "--yes")
    assert (done["state"], done["done"], done["options"]) == ("done", 3, {"queue": "slow"})
    begun = ask.said("jobs", "cancel", "queue:slow", "--detach", "--rate", "5")
    assert (begun["state"], begun["done"], begun["per_second"]) == ("running", 0, 5.0)
    aborted = ask.text("operations", "abort", begun["id"], "--actor", "ada")
    assert aborted.endswith(f"3 left\nNext: tenure operations resume {begun['id']}\n")
    assert ask.said("operations", "resume", begun["id"], "--rate", "1000")["done"] == 3
    assert db.value("select count(*) from tenure.job") == 0
    assert ask.run("jobs", "cancel", "type:none").stderr == (
        "operation 3 (cancel jobs): nothing matches, and nothing is stored\n"
    )
    assert len(ask.said("operations", "list")["operations"]) == 2
    assert ask.refused("jobs", "cancel", "typo:t")[1].startswith("'typo:t' at character 1: there is no name 'typo'")


async def test_a_search_that_cannot_be_meant_starts_nothing_and_leaves_nothing(
    store: Store, ask: Asking, db: Harness
) -> None:
    await jobs(store, 2)
    assert ask.refused("jobs", "cancel", "state:bogus", "--yes")[1].startswith("no job can be in state 'bogus'")
    assert ask.refused("jobs", "cancel", "contract:bogus", "--yes")[0] == "E-UNKNOWN-CONTRACT"
    assert ask.refused("dlq", "requeue", "status:requeued", "--yes")[1].startswith("only open dead letters can be")
    assert ask.refused("jobs", "cancel", "type:t", "--rate", "0")[1].startswith("--rate is 0.0; it must be within")
    assert ask.refused("operations", "run", "1", "--rate", "0")[1].startswith("--rate is 0.0")
    for given in ("--yes", "--detach"):
        assert ask.refused("jobs", "cancel", "", given)[1].startswith("an empty search finds everything")
    assert db.value("select count(*) from tenure.operation") == 0
    assert ask.said("jobs", "cancel", "", "--dry-run")["total"] == 2


async def test_dead_letters_are_repaired_together(store: Store, ask: Asking, db: Harness) -> None:
    letters = await fail(store, [broken("send", n) for n in range(3)], "gate_b2")
    done = ask.said("dlq", "requeue", "payload.n:0", "--set", "user.id=7", "--set", "to=Ada", "--yes")
    assert done["done"] == 1
    job = (await store.letters.show(letters[0])).requeued_as
    assert (await store.jobs([job or 0]))[0].payload == {"n": 0, "user": {"id": 7}, "to": "Ada"}
    assert ask.said("dlq", "discard", "status:open", "--reason", "spam", "--person", "ada", "--yes")["done"] == 2
    same = ask.said("dlq", "approve", "status:open", "--person", "ada", "--yes")
    assert (same["done"], same["skipped"]) == (0, {"APPROVAL_REQUIRED": 2})
    assert ask.said("dlq", "approve", "status:open", "--person", "bob", "--yes")["done"] == 2
    assert db.value("select count(*) from tenure.dead_letter where status = 'discarded'") == 2


async def test_several_ids_at_once_and_an_edited_payload(store: Store, ask: Asking, db: Harness) -> None:
    letters = await fail(store, [broken("send", n) for n in range(4)])
    done = ask.run("dlq", "requeue", str(letters[0]), str(letters[1]), "99", "--payload", '{"to": "ada"}', "--json")
    assert done.returncode == 1
    said = json.loads(done.stdout)
    assert [one.get("requeued_as") is not None for one in said] == [True, True, False]
    assert said[2]["refused"]["code"] == "DLQ_ITEM_NOT_FOUND"
    assert (await store.jobs([int(said[0]["requeued_as"])]))[0].payload == {"to": "ada"}
    assert ask.refused("dlq", "requeue", str(letters[2]), "--set", "n.deep=1")[1].startswith(
        "the payload has number at n"
    )
    assert ask.refused("dlq", "requeue", "1", "--set", "=1")[0] == "E-BAD-INPUT"
    assert ask.text("dlq", "discard", *map(str, letters[2:]), "--reason", "spam", "--person", "ada") == (
        f"dead letter {letters[2]} is discarded\ndead letter {letters[3]} is discarded\n"
    )
    wait = [await retrying(store, db), await retrying(store, db, "simple")]
    early = ask.run("jobs", "retry-now", *map(str, wait))
    assert (early.returncode, early.stdout) == (1, f"job {wait[0]} is due now\n")
    assert early.stderr.startswith("EARLY_RETRY: ")


async def test_a_preview_of_ids_is_refused_and_nothing_is_changed(store: Store, ask: Asking, db: Harness) -> None:
    (job_id,) = await jobs(store, 1)
    (letter,) = await fail(store, [broken("send")])
    for given in (
        ("jobs", "cancel", str(job_id)), ("jobs", "retry-now", str(job_id)), ("jobs", "requeue", str(job_id)),
        ("jobs", "move", str(job_id), "--queue", "slow"), ("jobs", "move", "--from", "default", "--queue", "slow"),
        ("dlq", "requeue", str(letter)), ("dlq", "discard", str(letter), "--reason", "spam"),
        ("dlq", "approve", str(letter), "--person", "ada"),
    ):  # fmt: skip
        assert ask.refused(*given, "--dry-run")[1].startswith("--dry-run is for a search, and no search is given.")
    assert ask.refused("jobs", "cancel", str(job_id), "--rate", "5")[1].startswith("--rate is for a search")
    assert ask.refused("dlq", "requeue", "status:open", "--edit")[1].startswith("--edit changes the payload of one")
    assert db.value("select string_agg(state || queue, ' ') from tenure.job") == "queueddefault"
    assert (await store.letters.show(letter)).status == "open"
    assert db.value("select count(*) from tenure.operation") == 0


async def test_a_payload_is_edited_in_the_editor(store: Store, ask: Asking, tmp_path: object) -> None:
    (letter,) = await fail(store, [broken("send")])
    editor = ask.place / "editor"
    editor.write_text('#!/bin/sh\nsed -i \'s/"n": 0/"n": 41/\' "$1"\n')
    editor.chmod(0o755)
    from tests.cli.forked import tenure

    done = tenure(
        "dlq", "requeue", str(letter), "--edit", "--json", cwd=ask.place, DATABASE_URL=ask.dsn, EDITOR=str(editor)
    )
    assert done.returncode == 0, done.stderr
    assert (await store.jobs([int(json.loads(done.stdout)["requeued_as"])]))[0].payload == {"n": 41}
    assert (await store.enqueue(NewJob("t"))).made


async def test_what_was_run_again_is_named_and_only_again_repeats_it(store: Store, ask: Asking, db: Harness) -> None:
    letters = await fail(store, [broken("send", n) for n in range(5)])
    assert ask.said("dlq", "requeue", "status:open", "--yes")["done"] == 5
    shown = [await store.letters.show(letter) for letter in letters]
    dead, made = shown[-1].job_id, shown[-1].requeued_as
    second = ask.run("jobs", "requeue", "state:dead", "--yes")
    assert second.stdout.startswith(f"5 left out: run again already (by operation 1: job {dead} as {made}, ")
    assert second.stdout.endswith(", …); --again repeats them\n")
    assert second.stderr == "operation 2 (requeue jobs): nothing matches, and nothing is stored\n"
    code, message = ask.refused("jobs", "requeue", str(dead))
    assert (code, "say --again" in message) == ("DLQ_REQUEUE_CONFLICT", True)
    for one in shown:
        await store.cancel(one.requeued_as or 0, actor="bob")
    assert ask.said("jobs", "requeue", str(dead), "--again")["requeued_as"]
    preview = ask.run("dlq", "requeue", "", "--again", "--dry-run")
    assert preview.stdout.startswith("operation 3 (requeue dead letters): 5 match everything\n")
    done = ask.text("operations", "run", "3")
    assert "4 of 5 done, 1 skipped (NOT_FINISHED 1)" in done
    last = ask.said("jobs", "requeue", "state:dead", "--again", "--dry-run")["id"]
    assert ask.text("operations", "abort", last) == f"the preview of operation {last} is deleted\n"
    assert ask.refused("operations", "show", last)[0] == "OPERATION_NOT_FOUND"


async def test_the_new_jobs_of_a_requeue_are_shown_and_listed(store: Store, ask: Asking, db: Harness) -> None:
    await fail(store, [broken("send", n) for n in range(3)])
    assert ask.said("dlq", "requeue", "status:open", "--yes")["done"] == 3
    made = [item.made or 0 for item in await store.operations.items(1)]
    await store.succeed((await claimed(store, made[0])).held)
    await store.cancel(made[1], actor="ada")
    card = ask.text("operations", "show", "1")
    assert re.search(r"now +1 [a-z]+, 1 [a-z]+, 1 [a-z]+\n", card)
    assert "tenure operations items 1 --now cancelled\n" in card
    assert ask.said("operations", "show", "1")["now"]["states"] == {"queued": 1, "succeeded": 1, "cancelled": 1}
    listed = ask.said("operations", "items", "1", "--now", "cancelled")
    assert [(one["made"], one["made_state"]) for one in listed["items"]] == [(str(made[1]), "cancelled")]
    page = ask.said("operations", "items", "1", "--limit", "2", "--state", "done")
    assert [one["made"] for one in page["items"]] == [str(one) for one in made[:2]]
    rest = ask.said("operations", "items", "1", "--after", page["next"])
    assert ([one["made"] for one in rest["items"]], rest["next"]) == ([str(made[2])], None)
    assert ask.refused("operations", "items", "9")[0] == "OPERATION_NOT_FOUND"
