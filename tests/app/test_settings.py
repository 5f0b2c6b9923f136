"""How long upkeep keeps what is past, as the environment says it."""

from __future__ import annotations

import pytest

from tenure.errors import BadInput
from tenure.settings import Settings
from tenure.upkeep import KeepTimes


def test_what_is_kept_is_read_as_spans_of_time() -> None:
    assert Settings.load({}).keep == {}
    given = {
        "TENURE_KEEP_JOBS": "90d", "TENURE_KEEP_PAYLOADS": "0s", "TENURE_KEEP_KEYS": "12h", "TENURE_KEEP_CLAIMS": "30m",
    }  # fmt: skip
    assert KeepTimes(**Settings.load(given).keep) == KeepTimes(
        payloads_s=0, idempotency_keys_s=43_200, claim_keys_s=1_800, finished_jobs_s=90 * 86_400
    )
    assert KeepTimes(**Settings.load({"TENURE_KEEP_JOBS": "7d"}).keep) == KeepTimes(finished_jobs_s=7 * 86_400)


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


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TENURE_MAX_BODY_BYTE", "TENURE_MAX_BODY_BYTES"),
        ("TENURE_WAKEUP", "TENURE_WAKEUPS"),
        ("TENURE_STANDART_LEASE_MS", "TENURE_STANDARD_LEASE_MS"),
        ("TENURE_DISPATCHERS_URL", "TENURE_DISPATCHER_URL"),
    ],
)
def test_a_name_that_is_almost_a_settings_is_refused_with_what_was_meant(name: str, meant: str) -> None:
    with pytest.raises(BadInput, match=f"{name} is no setting. Next: did you mean {meant}"):
        Settings.load({name: "1"})


@pytest.mark.parametrize("name", ["TENURE_BENCH_KEY", "TENURE_TEST_POOLER", "TENURE_PROVEN", "TENURE_OF_LAND"])
def test_a_name_that_is_like_no_setting_is_somebody_elses(name: str) -> None:
    assert Settings.load({name: "1"}) == Settings()
