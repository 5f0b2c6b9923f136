"""The delay before a retry: the same arithmetic as `tenure.backoff_ms` in SQL."""

from __future__ import annotations

import hashlib
import math

from tenure.contracts.numbers import Backoff


def fraction(job_id: int, claims: int) -> float:
    """Return a number in [0, 1) that depends only on the job and the claim, so a replay gives the same delay."""
    digest = hashlib.sha256(f"{job_id}:{claims}".encode()).digest()
    return int.from_bytes(digest[:3], "big") / 16777216.0


def delay_ms(backoff: Backoff, job_id: int, claims: int, raises: int = 0) -> int:
    """Return the delay after this claim failed, in whole milliseconds, at least 1."""
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
