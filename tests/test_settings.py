"""How long upkeep keeps what is past, as the environment says it."""

from __future__ import annotations

import pytest

from tenure.errors import BadInput
from tenure.settings import Settings
from tenure.upkeep import Keep


def test_what_is_kept_is_read_as_spans_of_time() -> None:
    assert Settings.load({}).keep == {}
    given = {
        "TENURE_KEEP_JOBS": "90d", "TENURE_KEEP_PAYLOADS": "0s", "TENURE_KEEP_KEYS": "12h", "TENURE_KEEP_CLAIMS": "30m",
    }  # fmt: skip
    assert Keep(**Settings.load(given).keep) == Keep(payloads=0, keys=43_200, claims=1_800, jobs=90 * 86_400)
    assert Keep(**Settings.load({"TENURE_KEEP_JOBS": "7d"}).keep) == Keep(jobs=7 * 86_400)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TENURE_KEEP_JOBS", "soon"),
        ("TENURE_KEEP_JOBS", "90"),
        ("TENURE_KEEP_JOBS", "-1d"),
        ("TENURE_KEEP_JOBS", "59s"),
        ("TENURE_KEEP_CLAIMS", "1s"),
        ("TENURE_KEEP_KEYS", "99999999999d"),
        ("TENURE_KEEP_PAYLOADS", ""),
        ("TENURE_KEEP_JOB", "90d"),
    ],
)
def test_a_span_that_makes_no_sense_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(BadInput, match=f"^{name} "):
        Settings.load({name: value})
