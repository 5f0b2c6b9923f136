"""The commands of docs/on-call.md, in their order, on the incident that the page describes."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

from tenure.jobs.alarm import AlarmLimits
from tenure.jobs.job import Failure, NewJob
from tenure.jobs.live_worker import LiveWorker
from tenure.postgres.store import Store
from tests.cli.forked import tenure
from tests.harness import Harness

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "on-call.md").read_text(encoding="utf-8")
COMMANDS = [
    line.removeprefix("$ tenure ")
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]
BAD = LiveWorker("images-2", ("images",), ("standard",), ("images.resize",), release="2026.11.2", host="box", pid=7)


async def staged(store: Store) -> str:
    """A bad release fails twelve jobs of acme and ends two of another tenant; returns the cause."""
    await store.workers.enter([BAD, replace(BAD, name="images-1", pid=8, release="2026.11.1")])
    for tenant, number in (("acme", 12), ("zeta", 2)):
        await store.enqueue_many(
            [NewJob("images.resize", {"n": n}, queue="images", tenant_id=tenant) for n in range(number)]
        )
    for job in await store.claim(queues=["images"], worker="images-2", limit=20):
        if job.tenant_id == "acme":
            await store.fail(job.held, Failure("'vat_id'", "KeyError", retryable=False, release="2026.11.2"))
        else:
            await store.succeed(job.held)
    while await store.groups.count_changes():
        pass
    await store.alarms.evaluate(AlarmLimits(), pause_s=0.0)
    await store.workers.leave(BAD)
    (group,) = await store.groups.list()
    return group.fingerprint


async def test_the_page_leads_from_the_page_to_the_repair(store: Store, db: Harness, dsn: str, tmp_path: Path) -> None:
    group = await staged(store)
    said: dict[str, str] = {}
    assert len(COMMANDS) > 15
    for command in COMMANDS:
        words = shlex.split(command.replace("GROUP", group))
        done = tenure(*words, cwd=tmp_path, DATABASE_URL=dsn)
        assert done.returncode == 0 or words[0] == "doctor", (command, done.stdout, done.stderr)
        said.setdefault(command, done.stdout + done.stderr)
    assert "12 standard jobs of tenant acme became dead letters" in " ".join(said["doctor"].split())
    assert "Next: tenure dlq groups --contract standard --tenant acme" in " ".join(said["doctor"].split())
    card = said["dlq groups GROUP"]
    assert re.search(r"releases +2026.11.2: 12 open of 12", card)
    assert re.search(r"workers +images-2: 12 open of 12", card)
    assert re.search(r"images-2 +12 ", said["jobs count 'state:dead tenant:acme age:<2h' --by worker"])
    assert "gone in the last hour: images-2 (images, release 2026.11.2) on box pid 7 stopped" in said["workers list"]
    assert re.search(r"zeta +2 ", said["jobs count 'worker:images-2 state:succeeded age:<2h' --by tenant"])
    assert "no open dead letters" in said["dlq list 'tenant:acme'"]
    assert db.value("select count(*) from tenure.job where role = 'ready' and tenant_id = 'acme'") == 12
    last = tenure("alarms", "list", cwd=tmp_path, DATABASE_URL=dsn)
    assert "dead-letters-growing" in last.stdout
