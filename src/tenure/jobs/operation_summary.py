"""What the preview of an operation has found, in short: counts by tenant, type and error, first and last, examples.

The summary of a preview is added up page by page, and stored with it. Its size is bounded: of each count the first 100
names are kept; the rest is what remains of the operation's total.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from tenure.jobs.formats import describe_failure

_NAMES: Final = 100
_EXAMPLES: Final = 3

#: As JSON: `tenants`, `types` and `errors` with the number of each, `first_at`, `last_at`, `samples`, `run_again`.
Summary = dict[str, Any]


class Found(NamedTuple):
    """A job or dead letter that a preview has found."""

    id: int
    state: str
    tenant_id: str
    type: str
    #: When it ended or was set aside; of a job that has not ended, when it was enqueued.
    at: datetime
    error: Mapping[str, Any] | None


class RunAgain(NamedTuple):
    """A job that the preview leaves out, because another one runs it again already."""

    id: int
    requeued_as: int
    letter_id: int | None


def add_found(summary: Summary, found: Iterable[Found]) -> Summary:
    """Return the summary with what a page has found."""
    counts: dict[str, dict[str, int]] = {name: dict(summary.get(name, {})) for name in ("tenants", "types", "errors")}
    examples: list[dict[str, Any]] = list(summary.get("samples", ()))
    moments = [datetime.fromisoformat(summary[name]) for name in ("first_at", "last_at") if summary.get(name)]
    first, last = (moments[0], moments[1]) if moments else (None, None)
    for one in found:
        for kind, name in (("tenants", one.tenant_id), ("types", one.type), ("errors", _error_name(one.error))):
            named = counts[kind]
            if name in named or len(named) < _NAMES:
                named[name] = named.get(name, 0) + 1
        first = one.at if first is None else min(first, one.at)
        last = one.at if last is None else max(last, one.at)
        if len(examples) < _EXAMPLES:
            examples.append({
                "id": str(one.id), "state": one.state, "tenant_id": one.tenant_id, "type": one.type,
                "at": one.at.isoformat(), "error": None if one.error is None else describe_failure(one.error),
            })  # fmt: skip
    return {
        **summary, **counts, "samples": examples,
        "first_at": first and first.isoformat(), "last_at": last and last.isoformat(),
    }  # fmt: skip


def add_run_again(summary: Summary, left_out: Sequence[RunAgain]) -> Summary:
    """Return the summary with the jobs that a page has left out, because they were run again already."""
    before: dict[str, Any] = summary.get("run_again", {"count": 0, "samples": [], "operation": None})
    examples = [{"id": str(one.id), "requeued_as": str(one.requeued_as)} for one in left_out]
    return {
        **summary,
        "run_again": {
            **before,
            "count": before["count"] + len(left_out),
            "samples": [*before["samples"], *examples][:_EXAMPLES],
        },
    }


def top(counts: Mapping[str, int], total: int, most: int = 5) -> list[tuple[str, int]]:
    """Return the names with the highest counts; the others, of `total`, together at the end."""
    named = sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:most]
    others = total - sum(count for _, count in named)
    return [*named, ("others", others)] if others > 0 else named


def _error_name(error: Mapping[str, Any] | None) -> str:
    if error is None:
        return "none"
    name, code = error.get("type") or "Error", error.get("code")
    return f"{name} [{code}]" if code and code != name else str(name)
