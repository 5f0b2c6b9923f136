"""Calls of a holder's verb for many jobs, from columns: `store.report("succeed", calls(held, results=[…]))`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import Failure, Held


def calls(
    held: Sequence[Held],
    *,
    results: Sequence[Any] | None = None,
    failures: Sequence[Failure | BaseException] | None = None,
    delays: Sequence[int] | None = None,
    reasons: Sequence[str | None] | None = None,
    keys: Sequence[str | None] | None = None,
    blocked: Collection[int] = (),
) -> list[HolderCall]:
    """One call for each job; a column that is not given stays unset."""
    none = [None] * len(held)
    return [
        HolderCall(
            one, key, result=result, failure=failure, delay_ms=delay or 0, reason=reason, blocks=one.id in blocked
        )
        for one, result, failure, delay, reason, key in zip(
            held, results or none, failures or none, delays or none, reasons or none, keys or none, strict=True
        )
    ]
