"""How soon do pages, lists and figures answer when there are 10 M jobs in 2,000 id ranges?

    ./dev bench pages [--quick] [--jobs N] [--ranges N] [--rounds N] [--only TEXT] [--json]

An embedded PostgreSQL is filled as years of use leave it (`full_database.py`): jobs of all six contracts, one
in a hundred with a dead letter, one in twenty live, with flows, schedules, datasets, operations, and counts. Then
`tenure serve` is started as a process of its own, with upkeep, and answers every page, list and kind of search in turn.

A second dispatcher without upkeep answers each request once more. The server's log has the statements; each runs again
under EXPLAIN, which gives the buffers that it reads, and how many relations it locks.

Milliseconds are those of the whole answer. On a busy machine trust the processor time, which is of the dispatcher and
of PostgreSQL.

Exit code 1: a 95th percentile is above 200 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import psycopg
from psycopg.conninfo import make_conninfo

from bench.full_database import Size, fill
from bench.kernel import SETTINGS, one
from bench.statement_counts import Log, Sent, watched
from tenure.embedded import Cluster
from tenure.postgres.connect import engine_dsn
from tenure.postgres.migrate import migrate
from tests.http.processes import dispatching

#: Milliseconds within which 95 of 100 answers come.
LIMIT_MS = 200.0
#: The longest time that pages share an answer is 2 s: a round takes longer, so that each reads anew.
_ROUND_S = 2.1
_WARM = 2
_SERVER = {
    **SETTINGS, "autovacuum": "off", "log_line_prefix": "|%a|", "log_parameter_max_length": "-1",
}  # fmt: skip
_LOCKS = "select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'relation'"
_MAY_EXPLAIN = re.compile(r"(?:/\*[^*]*\*/\s*)?(?:select|with)\b")


@dataclass
class Figures:
    """What one request takes."""

    ms: list[float] = field(default_factory=list)
    #: Milliseconds of processor time of the dispatcher and of all processes of PostgreSQL.
    dispatcher_ms: list[float] = field(default_factory=list)
    postgres_ms: list[float] = field(default_factory=list)
    statements: int = 0
    buffers: int = 0
    locks: int = 0
    slowest: tuple[float, str] = (0.0, "")

    @property
    def p95(self) -> float:
        """The time within which 95 of 100 answers came."""
        return statistics.quantiles(self.ms, n=20)[-1] if len(self.ms) > 1 else self.ms[0]

    def row(self) -> dict[str, Any]:
        """The figures by name."""
        return {
            "p50_ms": round(statistics.median(self.ms), 1), "p95_ms": round(self.p95, 1),
            "dispatcher_cpu_ms": round(statistics.median(self.dispatcher_ms), 1),
            "postgres_cpu_ms": round(statistics.median(self.postgres_ms), 1), "statements": self.statements,
            "buffers": self.buffers, "most_locks": self.locks,
            "slowest": f"{self.slowest[1]} {self.slowest[0]:.1f}" if self.slowest[1] else "",
        }  # fmt: skip


class Server:
    """A dispatcher on the full database."""

    def __init__(self, url: str) -> None:
        self.client = httpx2.Client(base_url=url, timeout=120)

    def get(self, path: str) -> tuple[float, httpx2.Response]:
        """The milliseconds until the whole answer is here, and the answer."""
        begun = time.perf_counter()
        response = self.client.get(path)
        ms = (time.perf_counter() - begun) * 1_000
        if response.status_code != 200:
            raise SystemExit(f"{path}: {response.status_code} {response.text[:500]}")
        return ms, response

    def json(self, path: str) -> Any:
        """The JSON of an answer."""
        return self.get(path)[1].json()

    def send(self, method: str, path: str, body: Any) -> Any:
        """The JSON of a call that changes something."""
        response = self.client.request(method, path, json=body)
        if response.status_code >= 300:
            raise SystemExit(f"{method} {path}: {response.status_code} {response.text[:500]}")
        return response.json()


def furnish(server: Server) -> dict[str, str]:
    """Make flows, schedules, datasets and an operation; a name for each page that shows one thing."""
    job = {"type": "t", "payload": {}}
    for n in range(200):
        body = {"application": f"shop-{n % 5}", "cron": f"{n % 60} 3 * * *", "job": job}
        server.send("PUT", f"/api/v1/schedules/report-{n}", body)
    for n in range(50):
        server.send("PUT", f"/api/v1/datasets/prices-{n}", {})
    late = {"type": "t", "contract": "standard", "queue": "flows"}
    nodes = [{"name": f"n{n}", **late, "after": [] if n == 0 else [f"n{(n - 1) // 2}"]} for n in range(1_000)]
    flow = server.send("POST", "/api/v1/flows", {"name": "wide", "nodes": nodes})["id"]
    query = {"kind": "jobs", "verb": "cancel", "q": "state:queued queue:queue-3"}
    operation = server.send("POST", "/api/v1/operations", query)["id"]
    return {
        "/flows/": str(flow), "/schedules/": "report-7", "/datasets/": "prices-7", "/operations/": str(operation),
        "/contracts/": "gate_b2",
    }  # fmt: skip


def searches(dsn: str, group: str) -> dict[str, str]:
    """Searches of jobs, by what they show: each word of the grammar alone, and some together."""
    with psycopg.connect(dsn) as connection:
        reason = one(connection, "select reason_code from tenure.dead_letter group by 1 order by count(*), 1 limit 1")
    return {
        "all": "", "a live state": "state:queued", "a held state": "state:running", "a good end": "state:succeeded",
        "a bad end": "state:dead", "type": "type:app.type_7", "a rare type": "type:rare.type",
        "no such type": "type:nobody",
        "queue": "queue:queue-3", "tenant": "tenant:tenant-7", "contract": "contract:gate_b2",
        "reason": f'reason:"{reason}"',
        "cause": f"group:{group}", "error": 'error:"no answer to request 7"',
        "no such error": "error:nothing-like-this",
        "payload": "payload.to:user7@example.org", "no such payload": "payload.to:nobody", "younger": "age:<1h",
        "older": "age:>300d", "several words": "state:dead type:app.type_7 queue:queue-1 age:>1h",
    }  # fmt: skip


def letter_searches(group: str) -> dict[str, str]:
    """The same of dead letters."""
    return {
        "all": "", "open": "status:open", "requeued": "status:requeued",
        "open of a tenant": "status:open contract:standard tenant:tenant-7",
        "type": "type:app.type_7", "no such type": "type:nobody", "cause": f"group:{group}", "release": "release:7",
        "error": 'error:"no answer to request 7"', "no such payload": "payload.to:nobody", "older": "age:>300d",
    }  # fmt: skip


def requests(server: Server, dsn: str, names: dict[str, str]) -> dict[str, str]:
    """Every request that is measured: what it is, and its path."""
    groups = server.json("/api/v1/dlq/groups?limit=50")["groups"]
    common, rare = groups[0]["fingerprint"], groups[-1]["fingerprint"]
    letter = server.json("/api/v1/dlq/items?limit=1")["items"][0]
    with psycopg.connect(dsn) as connection:
        old = one(connection, "select id from tenure.job_done where id > 2000000 order by id limit 1")
        middle = one(
            connection,
            "select low + 524288 from tenure.range order by low offset (select count(*) / 2 from tenure.range) limit 1",
        )
    live = server.json("/api/v1/jobs?limit=1&q=state:queued")["jobs"][0]["id"]
    pages = {
        "/": "/", "/jobs": "/jobs", "/jobs/{a live one}": f"/jobs/{live}", "/jobs/{an old one}": f"/jobs/{old}",
        "/jobs/{a dead one}": f"/jobs/{letter['job_id']}", "/dead-letters": "/dead-letters",
        "/dead-letters/{id}": f"/dead-letters/{letter['id']}", "/causes/{id}": f"/causes/{common}",
        "/operations": "/operations", "/queues": "/queues", "/workers": "/workers", "/schedules": "/schedules",
        "/flows": "/flows", "/flows?state=failed": "/flows?state=failed", "/flows?name=": "/flows?name=nightly-7",
        "/datasets": "/datasets", "/contracts": "/contracts", "/alarms": "/alarms", "/health": "/health",
        **{f"{before}{{name}}": before + name for before, name in names.items()},
    }  # fmt: skip
    found = {f"page {name}": path for name, path in pages.items()}
    for name in (
        "stats",
        "stats?since_seconds=86400",
        "queues",
        "workers",
        "doctor",
        "dlq/groups",
        "alarms",
        "schedules",
        "contracts",
    ):
        found[f"api {name}"] = f"/api/v1/{name}"
    found |= {
        "/metrics": "/metrics",
        "api jobs/{old}/why": f"/api/v1/jobs/{old}/why",
        "api jobs/{live}/why": f"/api/v1/jobs/{live}/why",
    }
    found["api dlq/groups?type="] = "/api/v1/dlq/groups?type=app.type_7"
    found["jobs, in the middle of history"] = f"/api/v1/jobs?cursor=finished-{middle}"
    for name, text in searches(dsn, rare).items():
        found[f"jobs: {name}"] = f"/api/v1/jobs?q={quote(text)}"
        if name in ("no such type", "cause", "a bad end"):
            found[f"jobs: {name}, in the middle"] = f"/api/v1/jobs?q={quote(text)}&cursor=finished-{middle}"
    found |= {
        f"dead letters: {name}": f"/api/v1/dlq/items?q={quote(text)}" for name, text in letter_searches(rare).items()
    }
    return found


class Processors:
    """The processor time of a dispatcher and of the processes of PostgreSQL, in milliseconds; on Linux."""

    def __init__(self, dispatcher: int, cluster: Cluster) -> None:
        self._dispatcher = dispatcher
        self._postmaster = int((cluster.directory / "data" / "postmaster.pid").read_text().split()[0])

    def read(self) -> tuple[float, float]:
        """So much so far, of the dispatcher and of PostgreSQL."""
        children = Path(f"/proc/{self._postmaster}/task/{self._postmaster}/children").read_text().split()
        return self._of(self._dispatcher), sum(self._of(int(child)) for child in children)

    def _of(self, process: int) -> float:
        spent = 0.0
        for thread in Path(f"/proc/{process}/task").glob("*/schedstat"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                spent += int(thread.read_text().split()[0]) / 1e6
        return spent


def look_through(server: Server, processors: Processors, asked: dict[str, str], rounds: int) -> dict[str, Figures]:
    """Send every request in turn, many times."""
    figures = {name: Figures() for name in asked}
    for turn in range(rounds + _WARM):
        begun = time.perf_counter()
        for name, path in asked.items():
            before = processors.read()
            ms, _ = server.get(path)
            spent = [now - was for now, was in zip(processors.read(), before, strict=True)]
            if turn >= _WARM:
                figures[name].ms.append(ms)
                figures[name].dispatcher_ms.append(spent[0])
                figures[name].postgres_ms.append(max(0.0, spent[1]))  # a process that ended takes its time along
        time.sleep(max(0.0, _ROUND_S - (time.perf_counter() - begun)))
    return figures


class Counter:
    """Runs the statements of a request again, and says what they did."""

    def __init__(self, dsn: str, log: Path) -> None:
        self._connection = psycopg.connect(engine_dsn(dsn), autocommit=True, prepare_threshold=None)
        self._log = Log(log)

    def count(self, server: Server, path: str, figures: Figures) -> None:
        """Send a request once more, and add up its statements."""
        self._log.skip()
        server.get(path)
        for sent in self._log.read():
            if not sent.is_frame and _MAY_EXPLAIN.match(sent.text):
                ms, buffers, locks = self._explain(sent)
                figures.statements += 1
                figures.buffers += buffers
                figures.locks = max(figures.locks, locks)
                figures.slowest = max(figures.slowest, (ms, sent.name))

    def _explain(self, sent: Sent) -> tuple[float, int, int]:
        values = f"({', '.join(sent.values)})" if sent.values else ""
        with self._connection.transaction(force_rollback=True):
            self._connection.execute(b"prepare probe as " + sent.text.encode())
            explained = one(
                self._connection, f"explain (analyze, buffers, timing off, format json) execute probe {values}"
            )[0]
            locks = one(self._connection, _LOCKS)
            self._connection.execute("deallocate probe")
        plan = explained["Plan"]
        buffers = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        return explained["Planning Time"] + explained["Execution Time"], buffers, locks


def measured(cluster: Cluster, size: Size, rounds: int, only: str) -> dict[str, Figures]:
    """Fill the server, and measure every request."""
    dsn = cluster.dsn
    migrate(dsn)
    fill(dsn, size)
    with dispatching(dsn, TENURE_LOG_LEVEL="warning") as (process, url):
        server, processors = Server(url), Processors(process.pid, cluster)
        names = furnish(server)
        asked = {name: path for name, path in requests(server, dsn, names).items() if only in name}
        figures = look_through(server, processors, asked, rounds)
    with dispatching(watched(make_conninfo(dsn, options="-c log_statement=all")), "--no-upkeep") as (_, url):
        server, counter = Server(url), Counter(dsn, cluster.directory / "log")
        for path in asked.values():  # what is read once in a process is known
            server.get(path)
        time.sleep(_ROUND_S)
        for name, path in asked.items():
            counter.count(server, path, figures[name])
    return figures


def show(figures: dict[str, Figures]) -> None:
    """Print a table in Markdown, the slowest last."""
    rows = {name: one.row() for name, one in figures.items()}
    header = [
        "request",
        "p50 ms",
        "p95 ms",
        "dispatcher CPU ms",
        "PostgreSQL CPU ms",
        "statements",
        "buffers",
        "most locks",
        "slowest statement, ms",
    ]
    for line in (header, ["---"] * len(header), *([name, *map(str, row.values())] for name, row in rows.items())):
        print(f"| {' | '.join(line)} |")
    slow = [name for name, each in figures.items() if each.p95 > LIMIT_MS]
    print(f"\n{len(figures)} requests; above {LIMIT_MS:g} ms: {', '.join(slow) or 'none'}")


def main() -> None:
    """Run on an embedded PostgreSQL of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="200,000 jobs in 200 ranges, 10 rounds")
    parser.add_argument("--jobs", type=int, help="how many jobs (10 M, quick: 200,000)")
    parser.add_argument("--ranges", type=int, help="how many id ranges (2,000, quick: 200)")
    parser.add_argument("--rounds", type=int, help="how often each request is sent (40, quick: 10)")
    parser.add_argument("--only", default="", help="only requests whose name has this text")
    parser.add_argument("--json", action="store_true", help="the figures as JSON on stdout")
    options = parser.parse_args()
    size = Size(
        options.jobs or (200_000 if options.quick else 10_000_000), options.ranges or (200 if options.quick else 2_000)
    )
    with (
        tempfile.TemporaryDirectory(prefix="tenure-bench-") as directory,
        Cluster(Path(directory), settings=_SERVER) as cluster,
    ):
        figures = measured(cluster, size, options.rounds or (10 if options.quick else 40), options.only)
    if options.json:
        print(json.dumps({name: one.row() for name, one in figures.items()}, indent=2))
    else:
        show(figures)
    sys.exit(any(one.p95 > LIMIT_MS for one in figures.values()))


if __name__ == "__main__":
    main()
