"""`/metrics` and `/api/v1/stats` show what the log says; alert rules and the dashboard ask for what exists."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tenure.contracts import BUILT_IN
from tenure.jobs.job import Failure, NewJob
from tenure.jobs.stats import BOUNDS, DLQ_COUNT, Count, Durations, PathHops, Snapshot, by_type
from tenure.metrics import database
from tenure.metrics.database import LABELS, METRICS
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.http.conftest import Caller, proof
from tests.postgres.test_counts import mixed

ROOT = Path(__file__).resolve().parents[2]
RULES, DASHBOARD = ROOT / "deploy" / "prometheus-rules.yml", ROOT / "deploy" / "grafana-dashboard.json"
_LINE = re.compile(r"([a-z0-9_]+)(?:\{(.*)\})? ([0-9.e+-]+|\+Inf)")

pytestmark = pytest.mark.core


def expose(shown: Snapshot) -> str:
    """The text of all metrics."""
    return database.expose(shown).decode()


def parsed(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """(name, labels) -> number."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = _LINE.fullmatch(line)
            assert match, line
            labels = frozenset(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or ""))
            assert (match[1], labels) not in found, f"twice: {line}"
            found[match[1], labels] = float(match[3])
    return found


def total(found: dict[Any, float], name: str, **labels: str) -> float:
    """The sum of a metric over all series with these labels."""
    return sum(number for (one, of), number in found.items() if one == name and labels.items() <= dict(of).items())


@pytest.mark.req("S2-56", "S2-57")
async def test_the_metrics_of_a_mixed_load_are_what_the_log_implies(store: Store, db: Harness) -> None:
    for contract in BUILT_IN:
        await mixed(store, db, contract)
    found = parsed(expose(await store.counts.snapshot()))
    for contract in BUILT_IN:
        for task in ("type-0", "type-1"):
            of = {"contract": contract, "type": task}

            def logged(*triggers: str, of: dict[str, str] = of) -> int:
                number: int = db.value(
                    "select count(distinct (job_id, claims, trigger)) from tenure.event "
                    "join (select id, type from tenure.job union all select id, type from tenure.job_done) as job "
                    "on job.id = event.job_id where hop and contract = %s and job.type = %s and trigger = any(%s)",
                    of["contract"], of["type"], list(triggers),
                )  # fmt: skip
                return number

            assert total(found, "tenure_claims_total", **of) == logged("claim", "reclaim") > 0
            assert total(found, "tenure_retries_total", **of) == logged("retry")
            assert total(found, "tenure_failures_total", **of) == logged("retry", "exhaust", "fatal")
            assert total(found, "tenure_lease_expiries_total", **of) == logged("expire", "expire_at_cap", "reclaim")
            letters = db.value(
                "select count(*) from tenure.dead_letter where contract = %s and type = %s", contract, task
            )
            assert total(found, "tenure_dlq_count_total", **of) == letters
            assert total(found, "tenure_wait_seconds_count", **of) == logged("claim")
    hops = db.sql(
        "select contract, trigger, from_state, to_state, count(*) from tenure.event where hop group by 1, 2, 3, 4"
    )
    for row in hops:
        of = {"contract": row["contract"], "trigger": row["trigger"], "from": row["from_state"], "to": row["to_state"]}
        assert total(found, "tenure_transitions_total", **of) == row["count"], of
    assert total(found, "tenure_transitions_total") == sum(row["count"] for row in hops)
    assert total(found, "tenure_jobs") == db.value("select count(*) from tenure.job")


async def test_a_failure_is_counted_once_whatever_its_path(store: Store) -> None:
    for contract in ("simple", "reliability"):
        await store.enqueue_many([NewJob(contract, contract=contract) for _ in range(2)])
        held, other = await store.claim(contract, worker="w", limit=2)
        await store.start(held.held)
        await store.fail(held.held, Failure("no", type="ValidationError"))
        if contract == "reliability":
            await store.dead_letter(other.id, reason_code="policy_violation", actor="ada")
    found = parsed(expose(await store.counts.snapshot()))
    counts = {
        contract: [total(found, f"tenure_{name}_total", type=contract) for name in ("failures", "retries", "dlq_count")]
        for contract in ("simple", "reliability")
    }
    # Two hops lead back to the queue of `simple`. What an operator sets aside is no failure.
    assert counts == {"simple": [1, 1, 0], "reliability": [1, 0, 2]}
    slices = (await store.counts.stats()).slices
    assert sorted((one.contract, one.failures) for one in slices if one.failures) == [("reliability", 1), ("simple", 1)]


@pytest.mark.req("S2-56", "S2-57")
@pytest.mark.parametrize("contract", ["standard", "reliability"])
async def test_a_renewal_is_counted_and_a_heartbeat_that_renews_nothing_is_not(
    store: Store, db: Harness, contract: str
) -> None:
    await store.enqueue(NewJob("t", contract=contract))
    (job,) = await store.claim(contract, ["default"], worker="w")
    await store.heartbeat(job.held)
    db.wear(job.id)
    assert (await store.heartbeat(job.held)).renewed
    assert total(parsed(expose(await store.counts.snapshot())), "tenure_lease_renewals_total", type="t") == 1


@pytest.mark.req("S2-30")
@pytest.mark.parametrize("state", ["assigned", "running"])
async def test_an_expired_lease_is_counted_once_and_the_job_waits_again_or_is_set_aside(
    store: Store, db: Harness, state: str
) -> None:
    await store.enqueue(NewJob("t", contract="reliability", max_attempts=2))
    for run in (1, 2):
        (job,) = await store.claim("reliability", ["default"], worker="w")
        if state == "running":
            await store.start(job.held)
        attempts, logged = db.row(job.id)["counter"], len(db.log(job.id))
        db.expire(job.id)
        await store.reap("reliability")
        row = db.row(job.id)
        assert (row["state"], row["counter"]) == ("queued" if run == 1 else "dead_lettered", attempts)
        assert len(db.log(job.id)) == logged + 1, "exactly one event"
        db.sql("update tenure.job set due_at = now()")
        assert total(parsed(expose(await store.counts.snapshot())), "tenure_lease_expiries_total", type="t") == run
    assert db.value("select reason_code from tenure.dead_letter") == "timeout"


@pytest.mark.req("S2-56")
def test_quantiles_of_a_histogram_are_within_a_bucket_of_the_true_ones() -> None:
    seconds = sorted(0.0004 * 1.013**n for n in range(1_000))
    durations = Durations()
    for one in seconds:
        durations.numbers[next(n for n, bound in enumerate(BOUNDS) if one <= bound)] += 1
    for share in (0.5, 0.95):
        true, shown = seconds[int(share * len(seconds)) - 1], durations.quantile(share)
        bucket = next(n for n, bound in enumerate(BOUNDS) if true <= bound)
        assert shown is not None
        assert BOUNDS[bucket - 1] <= shown <= BOUNDS[bucket]
    assert Durations().quantile(0.5) is None


def test_the_bounds_are_those_of_the_database(db: Harness) -> None:
    assert tuple(db.value("select tenure.duration_bounds()")) == BOUNDS


@pytest.mark.req("S4-06")
async def test_a_tenant_sees_its_own_figures_alone(store: Store, db: Harness) -> None:
    await mixed(store, db, "gate_b2")
    shown = expose(await store.counts.snapshot(tenant="a"))
    found = parsed(shown)
    assert {dict(labels).get("tenant", "a") for _, labels in found} == {"a"}
    assert "type-1" not in shown, "tenant b's"
    assert "tenure_oldest_ready_seconds" not in shown
    assert "tenure_workers" not in shown
    assert total(found, "tenure_jobs") == db.value("select count(*) from tenure.job where tenant_id = 'a'")
    data = (await store.counts.stats(tenant="a")).to_json()
    assert {(one["type"], one["tenant_id"]) for one in data["types"]} == {("type-0", "a")}
    assert data["now"] is None


async def test_labels_are_bounded_and_hostile_names_escaped(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.postgres.counts.MOST_LABELLED", 2)
    for task in ('a"} 1\n#\\', "b", "c", "d"):
        await store.enqueue(NewJob(task))
        await store.counts.fold()
    found = parsed(expose(await store.counts.snapshot()))
    types = {
        dict(labels)["type"]: number for (name, labels), number in found.items() if name == "tenure_enqueued_total"
    }
    assert types == {'a\\"} 1\\n#\\\\': 1, "b": 1, "(other)": 2}


def test_a_staged_dead_letter_is_counted_once() -> None:
    letters = {("gate_b2", "settle", "dlq_pending", "dlq_recorded")}
    hops = [("dlq_pending", "dlq_recorded"), ("dlq_recorded", "failed")]
    counts = [Count("gate_b2", "t", "a", "settle", *hop, -1, 1, 0.0) for hop in hops]
    (stats,) = by_type(counts, PathHops(letters=letters))
    assert stats.counters[DLQ_COUNT] == 1


def queries() -> list[str]:
    """Every query of the rules and of the dashboard."""
    rules = re.findall(r"expr: (?:\|\n((?:          .*\n)+)|(.*))", RULES.read_text())
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [a or b for a, b in rules] + [target["expr"] for panel in panels for target in panel["targets"]]


def test_rules_and_dashboard_ask_for_metrics_that_exist() -> None:
    asked = {name for query in queries() for name in re.findall(r"\btenure_\w+", query)}
    known = set(METRICS) | {
        name + end
        for name, (kind, _) in METRICS.items()
        if kind == "histogram"
        for end in ("_bucket", "_sum", "_count")
    }
    assert len(queries()) > 20
    assert asked <= known, asked - known


def test_every_metric_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    assert [name for name in METRICS if f"`{name}`" not in page] == []
    for name, labels in LABELS.items():
        assert f"| `{name}` | {', '.join(labels)} |" in page, name


def checked(*arguments: str, text: str = "") -> None:
    """Let promtool check something."""
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not here: Debian's package prometheus has it")
    done = subprocess.run([promtool, "check", *arguments], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_rules() -> None:
    checked("rules", str(RULES))


async def test_promtool_accepts_the_metrics(store: Store, db: Harness) -> None:
    await mixed(store, db, "reliability")
    await asyncio.to_thread(checked, "metrics", text=expose(await store.counts.snapshot(loop_lag_s=0.001)))


def test_the_dispatcher_shows_both(http: Caller) -> None:
    http.enqueued(type="mail")
    answer = http.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = parsed(answer.text)
    assert total(found, "tenure_enqueued_total", type="mail") == 1
    assert total(found, "tenure_jobs", state="queued") == 1
    assert ("tenure_process_loop_lag_seconds", frozenset()) in found
    (kind,) = http.get("/api/v1/stats", since_seconds=600)["types"]
    assert (kind["type"], kind["enqueued"], kind["wait"]["p95_s"]) == ("mail", 1, None)


def test_minutes_have_failures_waits_and_runs_whether_folded_or_not(http: Caller, db: Harness) -> None:
    for contract, type_ in (("simple", "mail"), ("simple", "mail"), ("standard", "sync")):
        http.enqueued(contract, type=type_)
        (claim,) = http.claimed(contract)
        error = {"type": "TransientError", "message": "again", "retryable": True}
        http.post(f"/api/v1/jobs/{claim['job']['id']}/fail", {**proof(claim), "error": error})
    db.sql("update tenure.tally set at = date_trunc('minute', now()), bucket = 9 where bucket is not null")  # to 1 s
    db.sql("update tenure.tally set bucket = 12 where trigger = 'retry' and contract = 'standard'")  # to 10 s
    shown = http.get("/api/v1/stats")
    mail = sum(one["failures"] for one in shown["slices"] if one["type"] == "mail")
    assert mail == 2, "a failure that takes two hops is one"
    (total,) = [one for one in shown["totals"] if one["claimed"]]
    assert (total["contract"], total["type"], total["claimed"], total["failures"]) == (None, None, 3, 3)
    assert 0.5 < total["wait_p50_s"] <= total["wait_p95_s"] <= 1
    assert total["run_p50_s"] <= 1 < 5 < total["run_p95_s"] <= 10
    assert sum(one["enqueued"] for one in shown["totals"]) == 3
    http.client.get("/metrics").raise_for_status()  # it folds
    again = http.get("/api/v1/stats")
    assert (again["slices"], again["totals"]) == (shown["slices"], shown["totals"])


def test_a_dispatcher_without_the_library_names_the_command(http: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("tenure.metrics")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr("tenure.errors.find_spec", lambda name: None)
    answer = http.client.get("/metrics")
    assert (answer.status_code, answer.json()["error"]["code"]) == (501, "E-MISSING-EXTRA")
    assert answer.json()["error"]["hint"] == "pip install 'tenure[metrics]'"
    monkeypatch.undo()
    assert http.client.get("/metrics").status_code == 200


def test_a_real_prometheus_scrapes_and_fires_a_rule(http: Caller, url: str, tmp_path: Path) -> None:
    if (program := shutil.which("prometheus")) is None:
        pytest.skip("prometheus is not here: Debian's package prometheus has it")
    http.enqueued(type="mail")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rule = {"alert": "JobsWait", "expr": "max(tenure_jobs) > 0", "labels": {"severity": "warning"}}
    rules = {"groups": [{"name": "test", "interval": "1s", "rules": [rule]}]}
    (tmp_path / "rules.yml").write_text(json.dumps(rules))
    (tmp_path / "prometheus.yml").write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(tmp_path / "rules.yml"), str(RULES)],
                "scrape_configs": [
                    {"job_name": "tenure", "static_configs": [{"targets": [url.removeprefix("http://")]}]}
                ],
            }
        )
    )
    command = [
        program, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
    ]  # fmt: skip
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            firing, give_up = list[str](), time.monotonic() + 60
            while "JobsWait" not in firing and time.monotonic() < give_up:
                time.sleep(0.2)
                with (
                    contextlib.suppress(OSError),
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/alerts") as got,
                ):
                    alerts = json.load(got)["data"]["alerts"]
                    firing = [one["labels"]["alertname"] for one in alerts if one["state"] == "firing"]
            assert "JobsWait" in firing, (tmp_path / "log").read_text()
        finally:
            process.terminate()
