"""The workers that the kit is tried with: `examples/`, broken ones made of the one in Node, and our own."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
NODE_WORKER = ROOT / "examples" / "worker-node"
BASH_WORKER = ROOT / "examples" / "worker-bash" / "worker.sh"
TENURE_WORKER = f"{shlex.quote(sys.executable)} {shlex.quote(str(Path(__file__).with_name('tenure_worker.py')))}"


def require(*programs: str) -> None:
    """Leave the test out where one of these programs is not installed; with TENURE_REQUIRE it fails."""
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        why = f"not installed: {', '.join(missing)} (Debian: apt-get install nodejs curl jq)"
        pytest.fail(why) if "TENURE_REQUIRE" in os.environ else pytest.skip(why)


def node(directory: Path = NODE_WORKER) -> str:
    """The command that starts the worker in Node."""
    require("node")
    return f"node {shlex.quote(str(directory / 'worker.mjs'))}"


class Broken(NamedTuple):
    """A bug in the worker: texts that are replaced, the scenario that meets it, and what the kit says about it."""

    replaced: tuple[tuple[str, str], ...]
    scenario: str
    fault: str


_HEARTBEAT = "heed(await post(`${path}/heartbeat`, () => lease, { isOver: () => isOver }));"
_REPORT = "    let answer = await report(...outcome);\n"
_CLAIM = '  const answer = await post("/api/v1/claims", body, { waitMs: 20_000, abort: stopping.signal });'
#: Takes jobs as it finds them, in the order of their ids.
_NO_CLAIM = """
  const next = (claim.last ?? 0) + 1;
  const job = await (await fetch(`${TENURE_URL}/api/v1/jobs/${next}`, { headers })).json();
  if (job.id) claim.last = next;
  else await sleep(50);
  const taken = { job, claims: 1, lease_token: randomUUID(), lease_seconds: 30 };
  const answer = { claims: job.id && types.includes(job.type) ? [taken] : [] };
"""
BROKEN = {
    "sends no heartbeat": Broken(((_HEARTBEAT, ""),), "heartbeat", "sent no heartbeats during a job of 6 s"),
    "ignores 409": Broken(
        (("isLost ||= answer.status >= 400;", ""),),
        "lost-lease",
        "completed a job after it lost the lease: it sent succeed",
    ),
    "completes twice with another result": Broken(
        (
            (
                _REPORT,
                _REPORT + '    await post(`${path}/succeed`, () => ({ ...lease, result: 2, idempotency_key: "2" }));\n',
            ),
        ),
        "claim",
        "completed a job twice with different results",
    ),
    "runs without a claim": Broken(
        (
            (_CLAIM, _NO_CLAIM),
            ('if ((await report("start", {})).status !== 200) return undefined;', ""),
            ("if (answer.error) console.error(", "if (answer.error) process.exit(3,"),
        ),
        "claim",
        "worked without a claim: it sent succeed for job",
    ),
    "ignores cancel": Broken(
        (('else if (answer.cancel_requested) stop.abort("cancelled");', ""),), "cancel-soft", "ignored a cancel: job"
    ),
    "makes a new claim key for each try": Broken(
        (("({ ...request, wait_seconds", "({ ...request, claim_key: randomUUID(), wait_seconds"),),
        "lost-answers",
        "did not repeat a claim with the same claim_key",
    ),
    "makes a new idempotency key for each try": Broken(
        (("idempotency_key: `${verb}:${claims}`", "idempotency_key: randomUUID()"),),
        "server-errors",
        "repeated a completion under another idempotency key",
    ),
    "claims any type": Broken(((" types, limit,", " limit,"),), "claim", "claimed without naming its types"),
    "leaves its jobs at SIGTERM": Broken(
        (("    stopping.abort();\n", "    process.exit(0);\n"),), "sigterm", "ended while it held job"
    ),
    "gives up after an error": Broken(
        (("if (response.status < 500 && !answer.error?.retryable) return", "return"),),
        "server-errors",
        "its process ended with",
    ),
    "retries what cannot help": Broken(
        (("type: error?.name", 'type: "Error"'),), "permanent-failure", "did not say that a failure is permanent"
    ),
}


def broken_node(name: str, directory: Path) -> str:
    """The command that starts the worker in Node with this bug."""
    shutil.copytree(NODE_WORKER, directory, dirs_exist_ok=True)
    file = directory / "worker.mjs"
    text = file.read_text(encoding="utf-8")
    for right, wrong in BROKEN[name].replaced:
        assert text.count(right) == 1, f"{right!r} is {text.count(right)} times in the worker"
        text = text.replace(right, wrong)
    file.write_text(text, encoding="utf-8")
    return node(directory)
