"""How long a job waits before it is tried again: the same arithmetic as `tenure.backoff_ms` in SQL."""

from __future__ import annotations

import hashlib
import math

from tenure.contract import Backoff


def fraction(job_id: int, claims: int) -> float:
    """A number in [0, 1) that depends on the job and the claim alone, so that a replay waits as long."""
    digest = hashlib.sha256(f"{job_id}:{claims}".encode()).digest()
    return int.from_bytes(digest[:3], "big") / 16777216.0


def delay_ms(backoff: Backoff, job_id: int, claims: int, raises: int = 0) -> int:
    """The delay after the failure of this claim, in whole milliseconds, at least one."""
    exponent = min(max(claims - raises - 1, 0), 100)
    centre = min(float(backoff.cap_ms), backoff.base_ms * math.pow(backoff.factor, exponent))
    jitter, u = backoff.jitter, fraction(job_id, claims)
    if jitter.form == "add":
        spread = centre + math.floor(jitter.low + u * (jitter.high - jitter.low + 1))
    else:
        spread = math.floor(centre * (jitter.low + u * (jitter.high - jitter.low)) + 0.5)
    if backoff.cap_after_jitter:
        spread = min(backoff.cap_ms, spread)
    return max(1, int(spread))
