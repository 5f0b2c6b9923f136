"""The workers that the documents show are the files of `examples/`, and the one in JavaScript does its work."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from pathlib import Path

import pytest

from tests.conformance.workers import BASH_WORKER, NODE_WORKER, ROOT, node
from tests.harness import Harness
from tests.http.conftest import Caller, client, http, url

__all__ = ["client", "http", "url"]
PAGE = (ROOT / "docs" / "other-languages.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("language", "number", "file"),
    [("js", 0, NODE_WORKER / "tasks.mjs"), ("js", 1, NODE_WORKER / "worker.mjs"), ("bash", 0, BASH_WORKER)],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_page_shows_the_real_file(language: str, number: int, file: Path) -> None:
    shown = re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)
    assert shown[number] == file.read_text(encoding="utf-8")


def test_the_worker_in_javascript_runs_saves_fails_and_stops(url: str, http: Caller, db: Harness) -> None:
    command = shlex.split(node())
    good = http.enqueued(type="thumbnail", queue="pictures", payload={"pages": 3})
    bad = http.enqueued(type="thumbnail", queue="pictures", payload=None, max_attempts=1)
    environment = {**os.environ, "TENURE_URL": url, "TENURE_QUEUE": "pictures"}
    with subprocess.Popen(command, env=environment) as worker:
        try:
            wait(http, good, "succeeded")
            wait(http, bad, "dead")
            # From here with a short lease, and so with many beats: a request to cancel is heard soon.
            kind = {"type": "thumbnail", "contract": "standard", "lease_ttl_sec": 2}
            http.client.put("/api/v1/types", json={"types": [kind]}).raise_for_status()
            long = http.enqueued(type="thumbnail", queue="pictures", payload={"pages": 10_000})
            wait(http, long, "running")
            http.post(f"/api/v1/jobs/{long}/cancel", {"mode": "soft"})
            wait(http, long, "cancelled")
            worker.terminate()
            http.enqueued(type="thumbnail", queue="pictures", payload={"pages": 0})  # it waits for this one
            assert worker.wait(60) == 0
        finally:
            worker.kill()
    shown = http.get(f"/api/v1/jobs/{good}")
    assert (shown["result"], shown["checkpoint"]) == ({"pages": 3}, {"page": 3})
    assert http.get(f"/api/v1/jobs/{bad}")["last_error"]["type"] == "TypeError"
    assert db.row(int(good))["claims"] == 1
    db.log_is_sound(*map(int, (good, bad, long)))


def wait(http: Caller, job_id: str, state: str) -> None:
    give_up = time.monotonic() + 60
    while (shown := http.get(f"/api/v1/jobs/{job_id}"))["state"] != state:
        assert time.monotonic() < give_up, shown
        time.sleep(0.05)
