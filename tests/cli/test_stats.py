"""`tenure stats`: what each type did, with sparklines."""

from __future__ import annotations

import pytest

from tenure.cli.stats import sparkline
from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tests.cli.conftest import Asking
from tests.harness import Harness


async def test_the_table_shows_types_live_jobs_and_a_sparkline(store: Store, ask: Asking, db: Harness) -> None:
    assert ask.run("stats").stderr == "nothing happened in the last 1h, and no job lives\n"
    await store.enqueue_many([NewJob("mail.send", queue="mail")] * 3)
    (job,) = await store.claim("standard", ["mail"], worker="w")
    await store.succeed(job.held)
    text = ask.text("stats", "--since", "15m")
    (row,) = [line.split() for line in text.splitlines() if "mail.send" in line]
    assert row[:7] == ["standard", "mail.send", "3", "1", "0", "0", "0"]
    assert row[-1] == "█"
    assert "standard  mail   queued  2" in text
    (said,) = ask.said("stats")["types"]
    assert (said["enqueued"], said["claims"], said["wait"]["count"], said["run"]["count"]) == (3, 1, 1, 1)
    assert ask.run("stats", "--since", "soon").returncode == 2


@pytest.mark.parametrize(("numbers", "bars"), [([], ""), ([0, 0], "▁▁"), ([0, 1, 50, 100], "▁▂▅█"), ([7], "█")])
def test_a_sparkline_is_as_high_as_its_numbers(numbers: list[int], bars: str) -> None:
    assert sparkline(numbers) == bars
