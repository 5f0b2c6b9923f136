"""`tenure datasets`: list and show them, cut over, roll back, and who did it."""

from __future__ import annotations

import pytest

from tenure.jobs.dataset import Append, NewDataset, NewSubscription, Output, Pointer
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import DatasetUse, NewJob
from tenure.postgres.store import Store
from tests.cli.conftest import Asking
from tests.cli.test_flows import on_store


@pytest.fixture
def two_sets(dsn: str) -> None:
    """Prices and rates with two generations each; prices has rows, a pointer and a subscriber."""

    async def make(store: Store) -> None:
        for name in ("prices", "rates"):
            await store.datasets.declare(NewDataset(name, keep=2), created_by="ann")
            await store.datasets.new_generation(name, created_by="ann")
        await store.enqueue(NewJob("t", writes=(DatasetUse("prices"),)))
        (job,) = await store.claim(worker="w")
        outputs: list[Output] = [
            Append("prices", [{"v": n} for n in range(3)], ["a", "b", "c"]),
            Pointer("prices", "s3://x"),
        ]
        await store.report_one("succeed", HolderCall(job.held, outputs=outputs))
        await store.datasets.subscribe([NewSubscription("prices", NewJob("index"))])
        await store.enqueue(NewJob("late", writes=(DatasetUse("prices", 2),)))

    on_store(dsn, make)


def test_without_datasets_it_says_so(ask: Asking) -> None:
    assert ask.run("datasets", "list").stderr == "there is no dataset\n"
    assert ask.run("datasets", "history").stderr == "there was no cutover\n"
    refused = ask.run("datasets", "show", "no")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "DATASET_NOT_FOUND: there is no dataset 'no'" in refused.stderr
    assert "Next: declare it, or tenure datasets list" in refused.stderr


@pytest.mark.usefixtures("two_sets")
def test_datasets_are_listed_and_shown(ask: Asking) -> None:
    listed = ask.said("datasets", "list")["datasets"]
    assert [(one["name"], one["current"], one["newest"], one["keep"]) for one in listed] == [
        ("prices", 1, 2, 2), ("rates", 1, 2, 2),
    ]  # fmt: skip
    page = ask.run("datasets", "list", "--limit", "1")
    assert f"Next: tenure datasets list --limit 1 --after {listed[0]['id']}" in page.stderr
    assert ask.said("datasets", "list", "--limit", "1", "--after", listed[0]["id"])["datasets"] == listed[1:]
    shown = ask.run("datasets", "show", "prices").stdout
    for text in ("dataset prices, generation 1 is current", "2 former generations", "s3://x", "index", "never current"):
        assert text in shown
    data = ask.said("datasets", "show", "prices")
    assert [len(data[part]) for part in ("generations", "pointers", "subscriptions")] == [2, 1, 1]


@pytest.mark.usefixtures("two_sets")
def test_rows_are_shown_page_by_page(ask: Asking) -> None:
    page = ask.said("datasets", "rows", "prices", "--limit", "2")
    assert [row["value"] for row in page["rows"]] == [{"v": 0}, {"v": 1}]
    more = ask.said("datasets", "rows", "prices", "--after", page["next"])
    assert [(row["key"], row["value"]) for row in more["rows"]] == [("c", {"v": 2})]
    assert ask.run("datasets", "rows", "prices", "--generation", "2").stderr == "generation 2 has no rows here\n"


@pytest.mark.usefixtures("two_sets")
def test_a_set_is_cut_over_and_rolled_back_and_the_log_names_who_did_it(ask: Asking) -> None:
    done = ask.run("datasets", "cutover", "prices=2", "rates", "--actor", "ann", "--reason", "the feed")
    assert done.stdout.splitlines() == [
        "dataset prices: generation 2 is current, before it was 1",
        "dataset rates: generation 2 is current, before it was 1",
        "Next: tenure datasets rollback prices rates, to undo it",
    ]
    again = ask.run("datasets", "cutover", "prices=2")
    assert (again.returncode, "current already" in again.stderr) == (1, True)
    for wrong in (("prices=9",), ("prices", "prices=1"), ("no",)):
        assert ask.run("datasets", "cutover", *wrong).returncode == 1
    back = ask.run("datasets", "rollback", "prices", "--actor", "ben")
    assert "dataset rates: generation 1 is current, before it was 2" in back.stdout
    assert "now cancelled: 1" in back.stdout
    assert ask.run("datasets", "rollback", "prices").returncode == 1
    log = ask.said("datasets", "history", "rates")["switches"]
    assert [(one["kind"], one["actor"], one["reason"]) for one in log] == [
        ("rollback", "ben", None), ("cutover", "ann", "the feed"),
    ]  # fmt: skip
    shown = ask.run("datasets", "history", "--limit", "1")
    assert "prices 2->1, rates 2->1" in shown.stdout
    assert f"--after {log[0]['id']}" in shown.stderr
