"""The worker in JavaScript that the documents show works as it is printed, wherever there is a Node to run it."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.harness import Harness
from tests.http.conftest import Caller, client, http, url

__all__ = ["client", "http", "url"]
PAGE = Path(__file__).parents[2] / "docs" / "other-languages.md"


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
def test_the_worker_in_javascript_runs_saves_fails_and_stops(
    url: str, http: Caller, db: Harness, tmp_path: Path
) -> None:
    (code,) = re.findall(r"```js\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    (tmp_path / "worker.mjs").write_text(code, encoding="utf-8")
    good = http.enqueued(type="thumbnail", queue="pictures", payload={"pages": 3})
    bad = http.enqueued(type="thumbnail", queue="pictures", payload=None, max_attempts=1)
    with subprocess.Popen(["node", "worker.mjs", url], cwd=tmp_path) as worker:
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
