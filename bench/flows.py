"""What do dependencies cost? A flow of 10,000 nodes beside as many jobs without any, and fan-ins beside other systems.

    ./dev bench flows [--quick] [--only SECTION]…

layers   10 layers of 1,000 no-ops, each after three of the layer before, beside 10,000 independent no-ops, in turn:
         the same worker in this process. Processor time of client and server together, from the call that makes them
ends     rows and pages of the flow tables that one end touches in fan-ins of several widths, the parents ending one
         by one: no parent is read again for each that ends
chord    1,000 jobs, then one with the list of their results, beside Celery's chord and Dramatiq's group
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

import tenure
from bench.comparison import installation, servers
from bench.comparison.more_peers import MORE
from bench.comparison.peers import TENURE, Peer
from bench.comparison.process import Running, Stuck
from bench.depth_sections.section import Table
from bench.kernel import SETTINGS, one
from tenure.embedded import Cluster
from tenure.flow import Node
from tenure.jobs.flow import NewFlow, NewNode
from tenure.jobs.job import NewJob
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store

_NODES, _LAYER, _PARENTS = 10_000, 1_000, 3
_WIDTHS = (100, 1_000, 10_000)
_ENDS = 100
_CHORD = 1_000
_PATIENCE_S = 120.0
_SIDES = ("jobs", "flow")


def application(dsn: str) -> tenure.App:
    """The application with its one task, which does nothing."""
    app = tenure.App(dsn)

    @app.task
    async def touch(n: int) -> None: ...

    return app


async def make_jobs(app: tenure.App, nodes: int) -> None:
    """Enqueue independent jobs."""
    touch = app.tasks["touch"]
    await app.enqueue_many(touch.call(n) for n in range(nodes))


async def make_layers(app: tenure.App, nodes: int) -> None:
    """Start a flow of layers, in which each node is after three of the layer before."""
    touch = app.tasks["touch"]
    flow = app.flow("layers")
    before: list[Node[None]] = []
    for first in range(0, nodes, _LAYER):
        layer = []
        for n in range(first, first + _LAYER):
            after = [before[(n + step) % _LAYER] for step in range(_PARENTS)] if before else []
            layer.append(flow.node(touch.call(n), name=f"n{n}", after=after))
        before = layer
    await flow.start()


async def layers(dsn: str, postmaster: int, nodes: int, times: int) -> Table:
    """Processor time and seconds of both sides, in turn."""
    spent: dict[str, list[list[float]]] = {side: [] for side in _SIDES}
    async with application(dsn) as app:
        for turn in range(times + 1):  # the first warms up
            for side in _SIDES if turn % 2 else _SIDES[::-1]:
                _vacuum(dsn)
                before, begun = _processor(postmaster), time.perf_counter()
                await (make_jobs if side == "jobs" else make_layers)(app, nodes)
                made = time.perf_counter()
                worker = app.worker(concurrency=_LAYER)
                running = asyncio.create_task(worker.run(until_idle=True))
                while worker.counts["succeeded"] < nodes:  # noqa: ASYNC110 (a worker tells nobody how far it is)
                    await asyncio.sleep(0.005)
                # While its sessions live: what ended ones used is known in whole ticks only.
                seconds, after = time.perf_counter(), _processor(postmaster)
                await running
                client = after.pop(0) - before.pop(0)
                used = [client, sum(spent - before.get(process, 0.0) for process, spent in after.items())]
                if turn:
                    spent[side].append([sum(used), *used, made - begun, seconds - made])
    rows = []
    for side in _SIDES:
        figures = [1e6 / nodes * statistics.median(column) for column in zip(*spent[side], strict=True)]
        rows.append([f"{nodes:,} {side if side == 'jobs' else 'nodes of a flow'}", *(f"{one:.1f}" for one in figures)])
    ratios = [
        [statistics.median(flow[n] / jobs[n] for flow, jobs in zip(spent["flow"], spent["jobs"], strict=True))]
        for n in range(5)
    ]
    rows.append(["ratio", *(f"{ratio:.2f}×" for (ratio,) in ratios)])
    header = ["microseconds a job", "processor time", "of it client", "of it server", "made in", "run in"]
    return Table(f"No-ops in layers of {_LAYER:,}, {_PARENTS} parents each, beside independent ones:", header, rows)


def _vacuum(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("vacuum analyze tenure.job, tenure.flow, tenure.flow_node, tenure.flow_end")


def _processor(postmaster: int) -> dict[int, float]:
    """Seconds of processor time so far, of the server's processes by their ids; 0: of this process."""
    spent = {0: time.process_time()}
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and _parent(process) == postmaster:
                spent[int(process.name)] = int((process / "schedstat").read_text().split()[0]) / 1e9
        except OSError:
            continue  # it has ended
    return spent


def _parent(process: Path) -> int:
    return int((process / "stat").read_text().rpartition(")")[2].split()[1])


async def ends(make: Callable[[str], str], widths: tuple[int, ...]) -> Table:
    """Rows and pages that one end touches, for several widths of a fan-in."""
    rows = []
    for width in widths:
        dsn = make(f"ends{width}")
        nodes = [NewNode(f"n{n}", NewJob("touch")) for n in range(width)]
        last = NewNode("last", NewJob("touch"), inputs={"results": [node.name for node in nodes]})
        async with Store.open(dsn, connections=1, wake=False) as store:
            await store.flows.create(NewFlow("fan-in", [*nodes, last]))
            jobs = await store.claim(worker="bench", limit=_ENDS)
        before = _touched(dsn)
        async with Store.open(dsn, connections=1, wake=False) as store:
            for job in jobs:
                await store.succeed(job.held, 1)
        after = _touched(dsn)
        each = [f"{(now - then) / len(jobs):.1f}" for now, then in zip(after, before, strict=True)]
        rows.append([f"{width:,}", *each])
    return Table(
        f"A fan-in whose parents end one by one; the flow tables, means of {_ENDS} ends:",
        ["parents", "rows read an end", "pages an end"],
        rows,
    )


def _touched(dsn: str) -> tuple[int, int]:
    """Rows and pages of the flow tables that were read so far, by sessions that have ended."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        while one(connection, "select count(*) from pg_stat_activity where application_name = 'tenure'"):
            time.sleep(0.05)
        (row,) = connection.execute(
            "select sum(seq_tup_read + idx_tup_fetch)::bigint, sum(heap_blks_hit + heap_blks_read + idx_blks_hit "
            "+ idx_blks_read + coalesce(toast_blks_hit + toast_blks_read, 0))::bigint "
            "from pg_stat_user_tables join pg_statio_user_tables using (relid) "
            "where pg_stat_user_tables.relname in ('flow', 'flow_node', 'flow_end')"
        ).fetchall()
        return row


def _peers() -> list[tuple[Peer, str]]:
    known = {peer.name: peer for peer in MORE}
    return [
        (replace(TENURE, version=tenure.__version__), "tenure_chord"),
        (known["celery"], "celery_chord"),
        (known["dramatiq"], "dramatiq_group"),
    ]


def chord(dsn: str, count: int, times: int) -> tuple[Table, list[str]]:
    """Seconds from the call that makes the jobs to the begin of the last one; and which peers cannot be measured."""
    rows, missing = [], []
    with ExitStack() as stack:
        redis: servers.Redis | None = None
        for peer, module in _peers():
            try:
                command = installation.command(peer)
                if peer.store == "redis":
                    redis = redis or stack.enter_context(servers.redis())
                    address = redis.fresh(peer.name)
                else:
                    address = dsn
                seconds = _fan_ins([command[0], "-m", f"bench.fan_in.{module}", address], peer, count, times)
            except (installation.Missing, Stuck) as error:
                missing.append(f"{peer.name}: {error}")
                continue
            shown = [f"{1e3 * pick(seconds):,.0f}" for pick in (statistics.median, min, max)]
            rows.append([f"{peer.name} {peer.version}", *shown])
    header = ["milliseconds", "median", "shortest", "longest"]
    return Table(f"{count:,} jobs, then one that waits for all of them, {times} times:", header, rows), missing


def _fan_ins(command: list[str], peer: Peer, count: int, times: int) -> list[float]:
    environment = installation.environment(peer)
    seconds = []
    with Running([*command, "worker"], environment) as worker, Running([*command, "start"], environment) as starter:
        while starter.line(_PATIENCE_S) != ["ready"]:
            pass
        for turn in range(times + 1):  # the first warms up
            _, _, begun = starter.ask(f"start {count}", _PATIENCE_S)
            while (words := worker.line(_PATIENCE_S))[0] != "end":
                pass
            assert int(words[1]) == count, words
            if turn:
                seconds.append(float(words[2]) - float(begun))
    return seconds


@contextmanager
def server() -> Iterator[tuple[int, Callable[[str], str]]]:
    """A server of its own: its process, and what makes a migrated database."""
    with (
        tempfile.TemporaryDirectory(prefix="tenure-flows-") as directory,
        Cluster(Path(directory), settings=SETTINGS) as cluster,
    ):
        with psycopg.connect(cluster.dsn, autocommit=True) as connection:
            data = one(connection, "show data_directory")

        def make(name: str) -> str:
            with psycopg.connect(cluster.dsn, autocommit=True) as connection:
                connection.execute(f"create database {name}".encode())
            dsn = make_conninfo(cluster.dsn, dbname=name)
            migrate(dsn)
            return dsn

        yield int((Path(data) / "postmaster.pid").read_text().splitlines()[0]), make


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one repetition instead of three, and no fan-in of 10,000")
    parser.add_argument("--only", action="append", choices=("layers", "ends", "chord"), metavar="SECTION")
    options = parser.parse_args()
    sections = options.only or ["layers", "ends", "chord"]
    times = 1 if options.quick else 3
    with server() as (postmaster, make):
        if "layers" in sections:
            asyncio.run(layers(make("layers"), postmaster, _NODES, times)).show()
        if "ends" in sections:
            asyncio.run(ends(make, _WIDTHS[:2] if options.quick else _WIDTHS)).show()
        if "chord" in sections:
            table, missing = chord(make("chord"), _CHORD, times)
            table.show()
            for line in missing:
                print(f"\nnot measured: {line}")


if __name__ == "__main__":
    main()
