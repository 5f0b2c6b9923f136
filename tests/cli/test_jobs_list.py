"""`tenure jobs list` as a person runs it: newest first, filtered, page by page."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable

from tenure.jobs.job import Failure, NewJob
from tenure.postgres.store import Store
from tests.cli.conftest import Asking
from tests.harness import Harness

BROKEN = Failure("broken for good", type="ValidationError", retryable=False)


async def some(store: Store) -> list[int]:
    """A dead job, a succeeded one, a held one and a queued one, in this order."""
    made = await store.enqueue_many([NewJob(f"t{n}", queue="slow mail", tenant_id="acme") for n in range(4)])
    dead, done, _ = await store.claim(queues=["slow mail"], worker="w1", limit=3)
    await store.fail(dead.held, BROKEN)
    await store.succeed(done.held)
    return [one.job_id for one in made if one.job_id is not None]


async def test_the_list_shows_live_and_finished_jobs_newest_first(store: Store, ask: Asking) -> None:
    done = ask.run("jobs", "list")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no job matches\n")
    dead, succeeded, held, queued = await some(store)
    head, *rows = ask.text("jobs", "list").splitlines()
    assert re.split(r"  +", head) == [
        "id", "state", "type", "queue", "tenant", "contract", "claims", "changed (UTC)", "ran", "worker", "last error",
    ]  # fmt: skip
    told = [re.split(r"  +", row) for row in rows]
    assert [row[:3] for row in told] == [
        [str(queued), "queued", "t3"], [str(held), "running", "t2"], [str(succeeded), "succeeded", "t1"],
        [str(dead), "dead", "t0"],
    ]  # fmt: skip
    assert told[1][-1] == told[2][-1] == "w1"
    assert told[1][-2].endswith(" so far")
    assert "w1" not in rows[0]
    assert told[3][-1] == "ValidationError: broken for good"
    said = ask.said("jobs", "list", "--state", "dead", "--type", "t0", "--queue", "slow mail", "--tenant", "acme",
                    "--contract", "standard")  # fmt: skip
    ((job,), following, stopped) = said["jobs"], said["next"], said["stopped"]
    assert (job["id"], job["state"], job["role"], following, stopped) == (str(dead), "dead", "done", None, False)
    assert job["last_error"] == {"type": "ValidationError", "code": None, "message": "broken for good"}
    assert "payload" not in job
    assert re.fullmatch(r"\d{4}-.*Z", job["finished_at"])


async def test_the_next_page_is_one_copied_command_away(store: Store, ask: Asking) -> None:
    made = await some(store)
    asked = ["jobs", "list", "--queue", "slow mail", "--limit", "3"]
    seen: list[int] = []
    for _ in range(2):
        done = ask.run(*asked)
        seen += [int(line.split()[0]) for line in done.stdout.splitlines()[1:]]
        if found := re.search(r"there are more\. Next: tenure (.*)", done.stderr):
            asked = shlex.split(found[1])
    assert seen == made[::-1]
    assert done.stderr == ""
    assert json.loads(ask.text("jobs", "list", "--limit", "3", "--json"))["next"] == f"finished-{made[1]}"


async def test_a_query_says_the_same_as_the_options_and_stands_beside_them(
    store: Store, db: Harness, ask: Asking
) -> None:
    dead, succeeded, held, queued = made = await some(store)
    db.sql("update tenure.job set created_at = created_at - interval '2 hours'")
    said = ask.said("jobs", "list", 'queue:"slow mail" age:>1h', "--tenant", "acme", "--queue", "slow mail")
    assert [job["id"] for job in said["jobs"]] == [str(queued), str(held)]
    assert [job["id"] for job in ask.said("jobs", "list", "state:dead age:<1h")["jobs"]] == [str(dead)]
    asked = ["jobs", "list", 'queue:"slow mail"  age:<1d', "--tenant", "acme", "--limit", "3"]
    done = ask.run(*asked)
    again = f"""jobs list 'queue:"slow mail" age:<1d' --tenant acme --limit 3 --after finished-{succeeded}"""
    assert done.stderr == f"there are more. Next: tenure {again}\n"
    assert [line.split()[0] for line in ask.text(*shlex.split(again)).splitlines()[1:]] == [str(made[0])]


def test_a_bad_query_is_refused_before_anything_is_asked(at_once: Callable[..., tuple[int, str, str]]) -> None:
    for arguments, message in (
        (["state:dead mail"], "'mail' at character 12: a word is name:value"),
        (["state:dead", "--state", "queued"], "--state is 'queued', and the query has 'dead'; give one of them"),
        (["tenant:a", "--tenant", "b"], "--tenant is 'b', and the query has 'a'; give one of them"),
    ):
        code, out, err = at_once("jobs", "list", *arguments)
        assert (code, out) == (1, "")
        assert err.startswith(f"E-BAD-INPUT: {message}")


def test_bad_questions_are_refused(ask: Asking) -> None:
    code, message = ask.refused("jobs", "list", "--state", "runing")
    assert code == "E-BAD-INPUT"
    assert "no job can be in state 'runing'" in message
    assert ask.refused("jobs", "list", "--after", "x") == (
        "E-BAD-INPUT", "'x' is not a cursor. Next: pass `next` of the page before, like live-41",
    )  # fmt: skip
    assert ask.refused("jobs", "list", "--contract", "standart")[0] == "E-UNKNOWN-CONTRACT"
    assert ask.run("jobs", "list", "--limit", "1001").returncode == 2
