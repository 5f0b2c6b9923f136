"""Five hundred texts that somebody may store to break a page, and a database with them in every field of users."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from html import escape
from pathlib import Path
from urllib.parse import quote

from tenure.jobs.alarm import Condition
from tenure.jobs.live_worker import LiveWorker
from tenure.jobs.search import LetterSearch
from tenure.postgres.store import Store
from tests.browser.conftest import with_store
from tests.http.conftest import Caller, proof

#: What others have broken pages with: markup, attributes, addresses, templates, quotes, directions, shapes, sizes.
SEEDS = [json.loads(line) for line in Path(__file__).with_suffix(".jsonl").read_text().splitlines()]
#: Each seed again, as it may arrive by another way.
_WAYS: tuple[Callable[[str], str], ...] = (
    str, escape, quote, str.upper, lambda text: text[::-1], lambda text: f'"{text}"', lambda text: f"'{text}",
    lambda text: f"</td></tr></table>{text}", lambda text: f"\u202e{text}", lambda text: text.replace(" ", "/"),
    lambda text: f"{text} {text}",
)  # fmt: skip
STRINGS = tuple(dict.fromkeys(way(seed) for way in _WAYS for seed in SEEDS))[:500]


def as_name(text: str, longest: int = 90) -> str:
    """A text as names may have it: without control characters, not empty, not too long."""
    printable = "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Cn", "Cs"))
    return printable.strip()[:longest].strip() or "x"


def stage(dsn: str, http: Caller, strings: Sequence[str]) -> Iterator[str]:
    """Store these texts in every field; yields the addresses of the pages about one thing that show them."""
    for number, text in enumerate(strings):
        yield from _job(http, number, text, as_name(text))
    for number, text in enumerate(strings[::5]):  # afterwards: it pauses queues
        yield from _others(http, number, text, as_name(text))
    with_store(dsn, partial(_by_the_store, strings))
    for one in http.get("/api/v1/dlq/groups", limit=20)["groups"]:
        yield f"/causes/{one['fingerprint']}"


def _job(http: Caller, number: int, text: str, name: str) -> Iterator[str]:
    fields = {"queue": name, "tenant_id": name, "correlation_id": name, "trace_id": name, "max_attempts": 2}
    job = {"type": name, "payload": {"text": text, text: [text]}, "idempotency_key": f"{name}{number}", **fields}
    job_id = http.post("/api/v1/jobs", job, status=201)["id"]
    (claim,) = http.claimed(queues=[name], worker_id=name, limit=1)
    shown = proof(claim)
    path = f"/api/v1/jobs/{job_id}"
    http.post(f"{path}/effect", {**shown, "node": name, "result": {text: text}})
    http.post(f"{path}/progress", {**shown, "value": {text: text}})
    http.post(f"{path}/checkpoint", {**shown, "value": [text]})
    if number % 3 == 0:
        http.post(f"{path}/cancel", {"mode": "soft", "reason": text[:900]})
    error = {
        "type": text[:200],
        "message": text,
        "code": name,
        "stage": name,
        "retryable": False,
        "stack": f"{text}\n{text}",
    }
    http.post(f"{path}/fail", {**shown, "error": error})
    yield f"/jobs/{job_id}"
    if letter := http.get(path)["dlq_id"]:
        yield f"/dead-letters/{letter}"


def _others(http: Caller, number: int, text: str, name: str) -> Iterator[str]:
    http.post("/api/v1/queues/pause", {"queue": name, "reason": text[:900]})
    nodes = [{"name": name, "type": name, "queue": name}, {"name": "after", "type": name, "after": [name]}]
    flow = http.post("/api/v1/flows", {"name": name, "nodes": nodes, "tenant_id": name}, status=201)["id"]
    yield f"/flows/{flow}"
    schedule = f"hostile-{number}"
    job = {"type": name, "queue": name, "tenant_id": name, "payload": {text: text}}
    body = {"application": name, "cron": "0 3 * * *", "job": job}
    http.client.put(f"/api/v1/schedules/{schedule}", json=body).raise_for_status()
    http.post(f"/api/v1/schedules/{schedule}/pause", {"application": name, "reason": text[:900]})
    yield f"/schedules/{schedule}?application={quote(name, safe='')}"
    dataset = f"d{number}"
    for version in (1, 2):
        shape = {"v": version, text: text}
        http.client.put(f"/api/v1/datasets/{dataset}", json={"shape": shape}).raise_for_status()
    http.post("/api/v1/dataset-cutovers", {"generations": {dataset: 2}, "reason": text[:900]})
    yield f"/datasets/{dataset}"
    query = str(LetterSearch(error=name))
    body = {"kind": "dead_letters", "verb": "discard", "q": query, "reason": text[:190]}
    yield f"/operations/{http.post('/api/v1/operations', body, status=201)['id']}"


async def _by_the_store(strings: Sequence[str], store: Store) -> None:
    """What workers and upkeep write."""
    names = dict.fromkeys(map(as_name, strings))
    await store.workers.enter([
        LiveWorker(name, (name,), ("standard",), (name,), name, name, name, 1, 5, 1, 2.5) for name in names
    ])  # fmt: skip
    await store.alarms._store(
        [Condition("oldest-waiting", one, one, 1.0, 0.5, tenant=as_name(one)) for one in strings[:40]]
    )
    await store.groups.count_changes()
