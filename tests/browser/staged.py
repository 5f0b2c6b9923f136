"""A database as a shop might have it: every contract and one of its own, failures, flows, schedules, datasets, alarms.

Everything is made as programs and people make it, through the API. Only the past is written by hand: the counts of the
last hour, and when things happened.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from tenure.contracts import BUILT_IN
from tenure.jobs.alarm import Condition
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tests.browser.conftest import with_store
from tests.decisions import PURCHASE
from tests.http.conftest import Caller, proof


@dataclass(frozen=True, slots=True)
class Kind:
    """A task of the shop: its contract and queue, how many a minute, how long they wait and run, how many fail."""

    type: str
    contract: str
    queue: str
    rate: float
    wait_s: float
    run_s: float
    failing: float = 0.0
    states: tuple[str, str, str] = ("queued", "running", "succeeded")
    #: The state between claim and start, where the contract has one.
    leased: str | None = None


KINDS = (
    Kind("mail.send", "standard", "mail", 180, 0.04, 0.3, 0.02),
    Kind("thumbnail.render", "simple", "media", 60, 0.4, 2.2, 0.01, ("PENDING", "RUNNING", "SUCCESS")),
    Kind("payment.charge", "reliability", "payments", 25, 0.02, 0.8, 0.06, leased="assigned"),
    Kind("invoice.render", "standard", "documents", 12, 1.5, 9.0, 0.0),
    Kind("search.index", "standard", "search", 90, 0.1, 0.15, 0.0),
    Kind("supplier.sync", "standard", "imports", 4, 20.0, 45.0, 0.3),
)
#: What went wrong, with how often: error, message, stack.
FAILURES = (
    (
        9,
        "supplier.sync",
        "imports",
        "ConnectTimeout",
        "no answer from api.supplier-{n}.example within 30 s",
        "sync.py",
        "fetch_page",
    ),
    (
        5,
        "payment.refund",
        "payments",
        "CardRefused",
        "the bank refused refund {n}: account closed",
        "payments.py",
        "refund",
    ),
    (4, "mail.send", "mail", "SMTPRecipientsRefused", "550 mailbox unavailable for customer {n}", "mail.py", "deliver"),
    (2, "invoice.render", "documents", "KeyError", "'vat_rate'", "invoices.py", "totals"),
)


def stage(dsn: str, http: Caller) -> dict[str, str]:
    """Fill the database; returns the names by which pages find things: the path before the name, and the name."""
    migrate(dsn, {**BUILT_IN, "purchase": PURCHASE})
    with psycopg.connect(dsn, autocommit=True) as connection:
        write_history(connection)
        jobs_of_each_contract(http)
        letters = [failed(http, *one[1:], n) for one in FAILURES for n in range(one[0])]
        past(connection)
        job = long_job(http, connection)
        waiting(http, connection)
        flow = flows(http)
        schedules_and_datasets(http)
        workers(http)
        with_store(dsn, upkeep)
        http.client.get("/metrics").raise_for_status()  # it folds the counts
        operation = http.post(
            "/api/v1/operations",
            {"kind": "dead_letters", "verb": "requeue", "q": "status:open type:mail.send"},
            status=201,
        )["id"]
    causes = http.get("/api/v1/dlq/groups")["groups"]
    letter = next(one for one in letters if one is not None)
    return {
        "/jobs/": job, "/dead-letters/": letter, "/schedules/": "nightly-report", "/contracts/": "reliability",
        "/flows/": flow, "/datasets/": "prices", "/causes/": causes[0]["fingerprint"], "/operations/": str(operation),
    }  # fmt: skip


def write_history(connection: psycopg.Connection[Any]) -> None:
    """The counts of the last hour, with a quarter of an hour in which a supplier does not answer."""
    random.seed(7)
    columns = "at, seconds, number, bucket, ended, contract, type, queue, trigger, path, tenant_id"
    insert = (
        f"insert into tenure.tally ({columns}) values (now() - %s * interval '1 minute', %s, %s, "
        "tenure.duration_bucket(%s), %s, %s, %s, %s, %s, %s, 'shop')"
    )
    with connection.cursor() as cursor:
        for kind in KINDS:
            for minute in range(59, 0, -1):
                trouble = 18 <= minute <= 33 and kind.type in ("supplier.sync", "payment.charge")
                wave = 1 + 0.35 * math.sin(minute / 9) + random.uniform(-0.12, 0.12)
                made = max(1, round(kind.rate * wave))
                failed = round(made * (0.7 if trouble else kind.failing))
                slow = 6.0 if trouble else 1.0
                of = (kind.contract, kind.type, kind.queue)
                ready, active, done = kind.states
                taken = kind.leased or active
                rows: list[tuple[Any, ...]] = [(minute, None, made, None, False, *of, "enqueue", f">{ready}")]
                for share, factor in ((0.5, 0.6), (0.4, 1.4), (0.1, 4.0)):
                    part = max(1, round(made * share))
                    wait, run = kind.wait_s * factor * slow, kind.run_s * factor * slow
                    rows.append((minute, wait * part, part, wait, False, *of, "claim", f"{ready}>{taken}"))
                    rows.append((minute, run * part, part, run, True, *of, "succeed", f"{active}>{done}"))
                    rows.append((minute, None, part - round(made * share), None, False, *of, "enqueue", f">{ready}"))
                if failed:
                    run = kind.run_s * slow
                    rows.append((minute, run * failed, failed, run, False, *of, "retry", f"{active}>{ready}"))
                    rows.append((minute, 0.5 * failed, failed, 0.5, False, *of, "claim", f"{ready}>{taken}"))
                if kind.leased:
                    starts = sum(row[2] for row in rows if row[8] == "claim")
                    rows.append((minute, None, starts, None, False, *of, "start", f"{taken}>{active}"))
                cursor.executemany(insert, [row for row in rows if row[2]])


def jobs_of_each_contract(http: Caller) -> None:
    """Some live jobs under every contract, held and waiting."""
    for number, contract in enumerate([*BUILT_IN, "purchase"]):
        kind = KINDS[number % len(KINDS)]
        for n in range(3 + number):
            payload = {"order": 4_200 + n, "customer": {"id": 77 + n, "country": "DE"}, "attachments": ["invoice.pdf"]}
            http.enqueued(contract, type=kind.type, queue=kind.queue, tenant_id="shop", payload=payload)
        if contract != "purchase":
            http.claimed(contract, queues=[kind.queue], worker_id=f"box-{1 + number % 3}:4711", limit=2)


def failed(
    http: Caller, type_: str, queue: str, error: str, message: str, file: str, function: str, n: int
) -> str | None:
    """The dead letter of a job that fails for good."""
    payload = {"order": 9_000 + n, "supplier": f"supplier-{n % 3}"}
    http.enqueued(type=type_, queue=queue, tenant_id="shop", payload=payload, priority=0)
    (claim,) = http.claimed(queues=[queue], types=[type_], worker_id=f"box-{1 + n % 3}:4711", limit=1)
    stack = (
        f'Traceback (most recent call last):\n  File "/srv/shop/{file}", line {40 + len(function)}, in {function}\n'
        f"    reply = client.get(url, timeout=30)\n{error}: {message.format(n=n)}\n"
    )
    found = {"type": error, "message": message.format(n=n), "code": "PERMANENT", "retryable": False, "stack": stack,
             "release": "2026.11.3" if n % 4 else "2026.11.2"}  # fmt: skip
    claimed_id = claim["job"]["id"]
    http.post(f"/api/v1/jobs/{claimed_id}/fail", {**proof(claim), "error": found})
    letter = http.get(f"/api/v1/jobs/{claimed_id}")["dlq_id"]
    return None if letter is None else str(letter)


def past(connection: psycopg.Connection[Any]) -> None:
    """Let jobs have been made one after the other, and have failed so."""
    connection.execute(
        "update tenure.dead_letter set failed_at = now() - age * interval '2 minutes' "
        "from (select id, row_number() over (order by id desc) as age from tenure.dead_letter) as old "
        "where old.id = dead_letter.id"
    )
    connection.execute(
        "update tenure.job set created_at = now() - age * interval '40 seconds', "
        "due_at = now() - age * interval '9 seconds', started_at = case when role in ('leased', 'active') "
        "then now() - interval '5 seconds' * (age % 7) end "
        "from (select id, row_number() over (order by id desc) as age from tenure.job) as old where old.id = job.id"
    )


def long_job(http: Caller, connection: psycopg.Connection[Any]) -> str:
    """A job with a long life: failures that differ, a lost lease, heartbeats, effects, a snooze, a cancel request."""
    payload = {"supplier": "supplier-2", "since": "2026-11-14", "pages": 120}
    job_id = http.enqueued(
        "standard", type="supplier.import", queue="imports", tenant_id="shop", payload=payload, max_attempts=6,
        trace_id="4bf92f3577b34da6a3ce929d0e0e4736", correlation_id="import-2026-11-14",
    )  # fmt: skip

    def claim(worker: str) -> dict[str, Any]:
        connection.execute("update tenure.job set due_at = now() where id = %s", (job_id,))
        while True:
            for one in http.claimed(queues=["imports"], types=["supplier.import"], worker_id=worker):
                shown = proof(one)
                http.post(f"/api/v1/jobs/{job_id}/start", shown)
                return shown
            with_store(connection.info.dsn, look)

    def fail(shown: Mapping[str, Any], message: str, host: str) -> None:
        error = {
            "type": "ConnectTimeout",
            "code": "UPSTREAM_TIMEOUT",
            "retryable": True,
            "message": message,
            "stack": f'  File "/srv/shop/sync.py", line 52, in fetch_page\nConnectTimeout: {message} ({host})\n',
        }
        http.post(f"/api/v1/jobs/{job_id}/fail", {**shown, "error": error})

    shown = claim("box-1:4711")
    for _ in range(3):
        http.post(f"/api/v1/jobs/{job_id}/heartbeat", shown)
    fail(shown, "no answer from api.supplier-2.example within 30 s", "10.0.0.7")
    shown = claim("box-2:4711")
    http.post(f"/api/v1/jobs/{job_id}/effect", {**shown, "node": "reserve-stock", "result": {"reservation": "R-7731"}})
    connection.execute("update tenure.job set lease_expires_at = now() - interval '1 minute' where id = %s", (job_id,))
    with_store(connection.info.dsn, look)
    shown = claim("box-3:4711")
    http.post(f"/api/v1/jobs/{job_id}/snooze", {**shown, "seconds": 60})
    shown = claim("box-1:4711")
    fail(shown, "503 from api.supplier-2.example: maintenance", "10.0.0.7")
    shown = claim("box-2:4711")
    for _ in range(5):
        http.post(f"/api/v1/jobs/{job_id}/heartbeat", shown)
    http.post(f"/api/v1/jobs/{job_id}/progress", {**shown, "value": {"page": 57, "of": 120}})
    http.post(f"/api/v1/jobs/{job_id}/cancel", {"mode": "soft", "reason": "the supplier has sent a file instead"})
    spread_log(connection, job_id)
    # Its lease lasts until the last picture.
    connection.execute("update tenure.job set lease_expires_at = now() + interval '5 minutes' where id = %s", (job_id,))
    return job_id


def spread_log(connection: psycopg.Connection[Any], job_id: str, minutes: int = 46) -> None:
    """Let the log of a job have taken so many minutes."""
    seqs = [
        seq for (seq,) in connection.execute("select seq from tenure.event where job_id = %s order by seq", (job_id,))
    ]
    random.seed(3)
    steps = [random.uniform(0.2, 3.0) for _ in seqs]
    scale, at = minutes * 60 / sum(steps), 0.0
    connection.execute("set session_replication_role = replica")  # the log refuses changes
    for seq, step in zip(reversed(seqs), steps, strict=True):
        connection.execute(
            "update tenure.event set ts = now() - %s * interval '1 second' where job_id = %s and seq = %s",
            (at, job_id, seq),
        )  # fmt: skip
        at += step * scale
    connection.execute("reset session_replication_role")
    connection.execute(
        "update tenure.job set created_at = now() - %s * interval '1 second' where id = %s", (at, job_id)
    )
    connection.execute("update tenure.job set started_at = now() - interval '3 minutes' where id = %s", (job_id,))


def waiting(http: Caller, connection: psycopg.Connection[Any]) -> None:
    """A queue that is paused, one without a worker, and jobs that are due since long."""
    for n in range(14):
        http.enqueued(type="invoice.render", queue="documents", tenant_id="shop", payload={"invoice": 7_300 + n})
    connection.execute("update tenure.job set due_at = now() - interval '11 minutes' where queue = 'documents'")
    http.post("/api/v1/queues/pause", {"queue": "documents", "reason": "the printer service is being replaced"})


def flows(http: Caller) -> str:
    """A flow in the middle of its run."""
    nodes = [
        {"name": "extract", "type": "prices.extract", "queue": "imports"},
        {"name": "clean", "type": "prices.clean", "queue": "imports", "after": ["extract"]},
        {"name": "convert", "type": "prices.convert", "queue": "imports", "after": ["extract"]},
        {"name": "check", "type": "prices.check", "queue": "imports", "after": ["clean", "convert"]},
        {"name": "publish", "type": "prices.publish", "queue": "imports", "after": ["check"]},
        {"name": "tell", "type": "mail.send", "queue": "imports", "after": ["publish"]},
    ]
    made = http.post("/api/v1/flows", {"name": "nightly prices", "nodes": nodes, "tenant_id": "shop"}, status=201)
    for name in ("prices.extract", "prices.clean"):
        (claim,) = http.claimed(queues=["imports"], types=[name], worker_id="box-1:4711", limit=1)
        http.post(f"/api/v1/jobs/{claim['job']['id']}/succeed", {**proof(claim), "result": {"rows": 48_211}})
    http.claimed(queues=["imports"], types=["prices.convert"], worker_id="box-2:4711", limit=1)
    http.post("/api/v1/flows", {"name": "monthly invoices", "nodes": nodes[:2], "tenant_id": "shop"}, status=201)
    return str(made["id"])


def schedules_and_datasets(http: Caller) -> None:
    """Two schedules, one of them paused; a dataset with a cutover."""
    for name, cron, kind in (
        ("nightly-report", "0 3 * * *", "report.build"),
        ("sync-suppliers", "*/15 * * * *", "supplier.sync"),
    ):
        body = {
            "application": "shop",
            "cron": cron,
            "tz": "Europe/Berlin",
            "job": {"type": kind, "payload": {}, "tenant_id": "shop"},
        }
        http.client.put(f"/api/v1/schedules/{name}", json=body).raise_for_status()
    http.post("/api/v1/schedules/sync-suppliers/pause", {"application": "shop", "reason": "supplier-2 is down"})
    for version in (1, 2):
        http.client.put(
            "/api/v1/datasets/prices", json={"tenant_id": "default", "shape": {"v": version}, "keep": 3}
        ).raise_for_status()
    http.post("/api/v1/dataset-cutovers", {"generations": {"prices": 2}, "reason": "prices of November"})


def workers(http: Caller) -> None:
    """Three live workers; a handler of the last one blocks its event loop."""
    for n, lag in ((1, 0.002), (2, 0.004), (3, 1.7)):
        about = {"application": "shop", "version": "0.1.0", "host": f"box-{n}", "pid": 4711, "slots": 50}
        body = {"worker_id": f"box-{n}:4711", "queues": ["mail", "payments", "imports", "media", "search"],
                "contracts": [*BUILT_IN], "worker": about, "busy": 9 * n, "loop_lag_s": lag}  # fmt: skip
        http.client.put("/api/v1/workers", json=body).raise_for_status()
    while any(one["loop_lag_s"] is None for one in http.get("/api/v1/workers")["workers"]):
        time.sleep(0.1)


async def upkeep(store: Store) -> None:
    """What upkeep does: it counts causes, and finds an alarm."""
    await store.groups.count_changes()
    summary = "14 jobs of queue documents wait, the oldest since 11 min"
    await store.alarms._store([Condition("oldest-waiting", summary, "tenure queues resume documents", 660.0, 300.0)])


async def look(store: Store) -> None:
    """Let upkeep look once for expired leases and due times."""
    await store.reap("standard")
    await store.promote("standard")
