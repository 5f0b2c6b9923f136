"""`./dev bench` measures, on Tenure alone and with tiny counts, and what it prints has the shape that others read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.beside import Compared, compare, http_figures, run_http, run_kernel
from bench.comparison.measurements import Side, Sizes, drain
from bench.comparison.more_peers import MORE
from bench.comparison.peers import SIX, TENURE
from bench.comparison.process import Running, Stuck
from bench.idle_beside import run_idle

ROOT = Path(__file__).parents[2]
ROW = {
    "name", "version", "enqueue_per_s", "drain_per_s", "p50_ms", "p99_ms", "sustained_per_s", "wal_bytes",
}  # fmt: skip


@pytest.mark.prove
def test_the_bench_prints_only_rows_and_draws_a_chart(tmp_path: Path) -> None:
    chart = tmp_path / "peers.svg"
    command = [sys.executable, "-m", "bench.peers", "--only", "tenure", "--quick", "--json"]
    sizes = ["--jobs", "200", "--sustained", "1", "--chart", str(chart)]
    done = subprocess.run([*command, *sizes], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert set(row) == ROW
    assert row["name"] == "tenure"
    assert all(row[figure] > 0 for figure in ROW - {"name", "version", "sustained_per_s"})
    assert row["p50_ms"] <= row["p99_ms"]
    assert len(row["sustained_per_s"]) == 1
    drawn = ElementTree.parse(chart).getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert len(drawn.findall(f"{space}rect")) == 3, "a bar each for drain, enqueue and latency"
    assert "tenure" in [text.text for text in drawn.iter(f"{space}text")]


@pytest.mark.prove
def test_the_bench_of_wake_ups_measures_every_way_in_which_a_worker_learns_of_a_task() -> None:
    command = [sys.executable, "-m", "bench.wakeup", "--tasks", "5", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["name"] for row in rows] == ["SQS (moto)", "long polling", "NOTIFY", "polling, 1 s"]
    assert all(0 < row["p50_ms"] <= row["p99_ms"] for row in rows)


def test_every_peer_is_pinned_and_has_an_adapter() -> None:
    for peer in (*SIX, *MORE):
        suffix = ".mjs" if peer.language == "node" else ".py"
        assert (ROOT / "bench" / "adapters" / f"{peer.module}{suffix}").exists(), peer.name
        assert all(re.search(r"[=@]\d+(\.\d+)+$", package) for package in peer.packages), peer.packages
        assert peer.version in " ".join(peer.packages)
    names = [peer.name for peer in (TENURE, *SIX, *MORE)]
    assert len(names) == len(set(names))


def test_a_job_that_never_ends_is_reported_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import sys, time\n"
        "role = sys.argv[1]\n"
        "if role == 'producer':\n"
        "    print('ready', flush=True)\n"
        "    print('many', 100, 0.1, flush=True) if sys.stdin.readline() else None\n"
        "elif role == 'worker':\n"
        "    print('at', 1, time.monotonic(), flush=True)\n"
        "    time.sleep(60)\n"
    )

    class Full:
        """A server where nothing is ever finished."""

        called = "nowhere"

        def fresh(self, name: str) -> str:
            return "nowhere"

        def unfinished(self, name: str, query: str) -> int:
            return 100

        def wal(self) -> None:
            return None

        def processor(self) -> None:
            return None

    wait = Running.wait_for_begun

    def impatient(process: Running, count: int, patience: float) -> None:
        wait(process, count, 0.5 if count > 1 else patience)  # for what never comes, once the first began

    monkeypatch.setattr(Running, "wait_for_begun", impatient)
    with pytest.raises(Stuck, match="1 of 100 began, and no more"):
        drain(Side(TENURE, Full(), [sys.executable, "-c", script]), 100)


def test_what_ends_early_says_its_last_words() -> None:
    with (
        Running([sys.executable, "-c", "raise SystemExit('no such table')"], {}) as process,
        pytest.raises(Stuck, match="ended early: no such table"),
    ):
        process.line(60)


def test_jobs_are_counted_in_whole_hundreds() -> None:
    assert Sizes(jobs=1).jobs_for(TENURE) == 100
    assert Sizes(share=0.3333).jobs_for(TENURE) % 100 == 0


@pytest.mark.prove
def test_the_bench_over_http_measures_every_way_through_a_dispatcher() -> None:
    command = [sys.executable, "-m", "bench.http", "--quick", "--json", "--no-direct", "--jobs", "100"]
    done = subprocess.run([*command, "--concurrency", "8"], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    calls = {
        "one by one": ["claim", "finish"], "document 001": ["claim", "finish"], "enqueue, batches of 100": ["enqueue"],
        "batches of 100": ["claim", "finish"], "enqueue, batches of 500": ["enqueue"],
        "batches of 500": ["claim", "finish"], "idle": ["wait"],
    }  # fmt: skip
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert list(rows) == list(calls)
    for name, row in rows.items():
        assert (row["jobs_per_s"] is None) is (name == "idle"), name
        for call in ("enqueue", "claim", "finish", "wait"):
            half, tail = row[f"{call}_p50_ms"], row[f"{call}_p99_ms"]
            assert (half is not None) is (call in calls[name]), (name, call)
            assert half is None or 0 < half <= tail
    assert rows["one by one"]["clients"] == 8


def test_beside_runs_the_kernel_benchmark_and_the_sources_of_each_tree(tmp_path: Path) -> None:
    rounds = []
    for cost in (10.0, 20.0):
        tree = tmp_path / str(cost)
        (tree / "bench").mkdir(parents=True)
        (tree / "src").mkdir()
        (tree / "src" / "tenure.py").write_text(f"COST = {cost}\n")
        (tree / "bench" / "beside.py").write_text("import tenure\nprint('{\"claim\": %s}' % tenure.COST)\n")
        rounds.append(run_kernel(tree))
    assert rounds == [{"claim": 10.0}, {"claim": 20.0}]


@pytest.mark.prove
def test_beside_measures_the_dispatcher_and_the_worker_of_each_tree(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "tenure").symlink_to(ROOT / "src" / "tenure")
    rounds = run_http({"before": tmp_path, "now": ROOT}, 1, 100)
    (before,), (now,) = rounds["before"], rounds["now"]
    assert before.keys() == now.keys()
    assert {"http, idle, dispatcher processor µs a job", "http, direct worker, worker processor µs a job"} <= now.keys()
    assert all(figure > 0 for figure in now.values())


@pytest.mark.prove
def test_beside_measures_idle_jobs_of_each_tree_in_turn() -> None:
    rounds = run_idle({"before": ROOT, "now": ROOT}, 2, 5)
    assert [len(figures) for figures in rounds.values()] == [2, 2]
    for figures in [*rounds["before"], *rounds["now"]]:
        assert 0 < figures["idle, p10 ms"] <= figures["idle, p50 ms"] <= figures["idle, p99 ms"]
        assert figures["idle, worker processor µs a job"] > 0


def test_beside_compares_each_round_and_flags_only_what_got_slower_by_more_than_15_percent() -> None:
    before = [{"claim": 10.0, "fail": 8.0, "gone": 1.0}, {"claim": 90.0, "fail": 8.0}, {"claim": 11.0, "fail": 8.0}]
    now = [{"claim": 12.0, "fail": 9.3, "new": 2.0}, {"claim": 100.0, "fail": 9.3}, {"claim": 12.0, "fail": 20.0}]
    compared = compare(before, now)
    assert compared == [
        Compared("claim", 11.0, 12.0, 100.0 / 90.0), Compared("fail", 8.0, 9.3, 9.3 / 8.0),
        Compared("new", None, 2.0, None), Compared("gone", 1.0, None, None),
    ]  # fmt: skip
    assert [one.name for one in compared if one.is_finding] == ["fail"]


def test_beside_takes_the_rows_of_bench_http_as_costs() -> None:
    latencies = {f"{call}_p50_ms": None for call in ("enqueue", "claim", "finish", "wait")}
    spent = {"generator": 1_800.0, "dispatcher": 1_000.0}
    row = {"name": "one by one", "jobs_per_s": 500.0, "processor_us": spent, **latencies}
    assert http_figures([{**row, "claim_p50_ms": 3.5}]) == {
        "http, one by one, µs a job": 2_000.0, "http, one by one, dispatcher processor µs a job": 1_000.0,
        "http, one by one, claim p50 ms": 3.5,
    }  # fmt: skip
