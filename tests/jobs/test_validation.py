"""What comes from outside is checked before any of it is sent: bad input gets an error that says what to do."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.contracts import BUILT_IN
from tenure.errors import BadInput, PayloadTooLarge, TenureError
from tenure.jobs import validation
from tenure.jobs.job import NewJob

STANDARD, GATE_B2, SIMPLE = BUILT_IN["standard"], BUILT_IN["gate_b2"], BUILT_IN["simple"]
RELIABILITY = BUILT_IN["reliability"]


def circular() -> list[Any]:
    """A list that contains itself."""
    knot: list[Any] = []
    knot.append(knot)
    return knot


def nested(levels: int) -> Any:
    """Lists and objects in each other, this many levels deep."""
    value: Any = []
    for level in range(levels - 1):
        value = [value] if level % 2 else {"in": value}
    return value


BAD_DOCUMENTS: Mapping[str, tuple[Any, str]] = {
    "an object of Python": (object(), "is not JSON"),
    "an object inside": ({"a": [object()]}, "is not JSON"),
    "not a number": (float("nan"), "is not JSON"),
    "infinity inside": ({"a": float("inf")}, "is not JSON"),
    "a set": ({1, 2}, "is not JSON"),
    "bytes": (b"x", "is not JSON"),
    "a key that is no text": ({1: 2}, "keys must be strings"),
    "a key that is no text, inside": ({"a": [{1: 2}]}, "keys must be strings"),
    "a key that is nothing, inside": ({"a": {None: 2}}, "keys must be strings"),
    "a key that is a tuple": ({"a": {(1, 2): 2}}, "keys must be"),
    "a circle": (circular(), "is not JSON"),
    "a lone surrogate": ("\ud800", "lone surrogate.*remove it"),
    "a lone surrogate in a key": ({"\udfff": 1}, "lone surrogate.*remove it"),
    "NUL": ("\x00", "NUL character.*remove it"),
    "NUL inside": ({"a": ["b", {"c": "d\x00"}]}, "NUL character.*remove it"),
    "NUL in a key": ({"a": {"\x00": 1}}, "NUL character.*remove it"),
    "NUL after a backslash": ("\\\x00", "NUL character.*remove it"),
    "NUL after a text that looks like it": (["\\u0000", "\x00"], "NUL character.*remove it"),
    "201 levels": (nested(201), "nested deeper than 200 levels; flatten it"),
    "a number with too many digits": (10**5_000, "is not JSON"),
}


@pytest.mark.parametrize("what", BAD_DOCUMENTS)
def test_document_is_refused_for(what: str) -> None:
    value, message = BAD_DOCUMENTS[what]
    with pytest.raises(BadInput, match=f"payload .*{message}"):
        validation.to_json("payload", value)


def test_document_is_refused_for_a_million_levels() -> None:
    # Made here and not above: every test process would keep it, and look through it in every garbage collection.
    with pytest.raises(BadInput, match=r"payload .*nested deeper than 200 levels; flatten it"):
        validation.to_json("payload", nested(1_000_000))


def test_document_over_the_limit_says_both_sizes_and_what_to_do() -> None:
    assert len(validation.to_json("result", "x" * 98, max_bytes=100)) == 100
    with pytest.raises(PayloadTooLarge, match=r"result has 101 bytes; at most 100 are allowed\. Store it elsewhere"):
        validation.to_json("result", "x" * 99, max_bytes=100)


def test_size_is_counted_in_bytes_not_characters() -> None:
    with pytest.raises(PayloadTooLarge, match="has 102 bytes"):
        validation.to_json("payload", "ü" * 50, max_bytes=100)


GOOD_DOCUMENTS: Mapping[str, Any] = {
    "nothing": None,
    "a text that looks like an escaped NUL": "\\u0000",
    "two backslashes before it": "\\\\u0000",
    "the same as a key": {"\\u0000": ["\\u0000"]},
    "200 levels": nested(200),
    "many brackets beside each other": [[] for _ in range(1_000)],
    "brackets in a text": "[" * 1_000,
    "quotes and backslashes": {'a"b': "c\\d'e,{}"},
    "characters beyond the plane": "🙂\u2028\x7f\u0001",
    "a whole number beyond 64 bits": 2**200,
}


@pytest.mark.parametrize("what", GOOD_DOCUMENTS)
def test_document_may_be(what: str) -> None:
    assert json.loads(validation.to_json("payload", GOOD_DOCUMENTS[what])) == GOOD_DOCUMENTS[what]


@pytest.mark.parametrize("kind", validation.LENGTHS)
def test_name_is_refused_when_it_cannot_be_one(kind: str) -> None:
    most = validation.LENGTHS[kind]
    assert validation.check_name(kind, "ü" * most) == "ü" * most
    bad: dict[Any, str] = {
        "": "must be a non-empty string",
        " \t\n": "must be a non-empty string",
        None: "must be a non-empty string, not None",
        7: "must be a non-empty string, not 7",
        b"x": "must be a non-empty string",
        "x" * (most + 1): f"has {most + 1} characters; at most {most} are allowed",
        "a\x00b": "contains a NUL character, which PostgreSQL cannot store; remove it",
        "a\ud800b": "contains a lone surrogate, which is not text; remove it",
    }
    for value, message in bad.items():
        with pytest.raises(BadInput, match=f"^{kind} {message}"):
            validation.check_name(kind, value)


@pytest.mark.parametrize("value", [True, False, "5", 5.0, None, [5]])
def test_whole_number_is_nothing_else(value: Any) -> None:
    with pytest.raises(BadInput, match="priority must be a whole number, not"):
        validation.check_integer("priority", value, 0, 9)


@pytest.mark.parametrize("value", [-1, 10, 11, 2**80])
def test_whole_number_outside_its_range_says_the_range(value: int) -> None:
    with pytest.raises(BadInput, match=rf"priority is {value}; it must be within 0\.\.9"):
        validation.check_integer("priority", value, 0, 9)


@pytest.mark.parametrize("value", ["", "x", "1234", 7, None, "6f0c2d3e-0000-4000-8000-00000000000g"])
def test_token_that_is_no_uuid_is_refused(value: Any) -> None:
    with pytest.raises(BadInput, match="claim_key and lease_token must be UUIDs, not "):
        validation.parse_uuid(value)


def test_token_may_be_a_uuid_or_its_text() -> None:
    token = UUID("6f0c2d3e-1111-4111-8111-111111111111")
    assert validation.parse_uuid(token) is token
    assert validation.parse_uuid(str(token)) == token


def test_limit_stays_within_the_contracts_own_range() -> None:
    assert (
        validation.check_max_attempts(STANDARD, 1),
        validation.check_max_attempts(SIMPLE, 0),
        validation.check_max_attempts(GATE_B2, 3),
    ) == (1, 0, 3)
    for contract, value, message in (
        (STANDARD, 0, r"max_attempts of contract standard is 0; it must be within 1\.\.1000"),
        (STANDARD, 1001, r"max_attempts of contract standard is 1001; it must be within 1\.\.1000"),
        (SIMPLE, -1, r"max_retries of contract simple is -1; it must be within 0\.\.1000"),
        (GATE_B2, 2, r"max_retries of contract gate_b2 is 2; it must be within 3\.\.3"),
        (GATE_B2, 4, r"max_retries of contract gate_b2 is 4; it must be within 3\.\.3"),
    ):
        with pytest.raises(BadInput, match=message):
            validation.check_max_attempts(contract, value)


def test_lease_stays_within_the_contracts_own_range() -> None:
    assert (validation.check_lease_ms(STANDARD, None), validation.check_lease_ms(RELIABILITY, 30_000)) == (None, 30_000)
    for contract, value, message in (
        (STANDARD, 1_999, r"lease_ms of contract standard is 1999; it must be within 2000\.\.86400000"),
        (STANDARD, 86_400_001, r"within 2000\.\.86400000"),
        (RELIABILITY, 120_001, r"lease_ms of contract reliability is 120001; it must be within 30000\.\.120000"),
    ):
        with pytest.raises(BadInput, match=message):
            validation.check_lease_ms(contract, value)


NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
BAD_TIMES: Mapping[str, tuple[Callable[[], NewJob], str]] = {
    "both": (lambda: NewJob("t", run_at=NOON, delay_ms=1), "give either run_at or delay_ms, not both"),
    "no zone": (lambda: NewJob("t", run_at=NOON.replace(tzinfo=None)), "must be a datetime with a time zone"),
    "a text": (lambda: NewJob("t", run_at="noon"), "must be a datetime with a time zone"),  # type: ignore[arg-type]
    "the past by a delay": (lambda: NewJob("t", delay_ms=-1), r"delay_ms is -1; it must be within 0\.\."),
    "a delay for ever": (lambda: NewJob("t", delay_ms=2**62), r"delay_ms is \d+; it must be within 0\.\."),
    "a broken delay": (lambda: NewJob("t", delay_ms=1.5), "delay_ms must be a whole number"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", BAD_TIMES)
def test_time_is_refused_when_it_is(what: str) -> None:
    job, message = BAD_TIMES[what]
    with pytest.raises(BadInput, match=message):
        validation.check_new_job(STANDARD, job())


def test_bad_input_is_also_a_value_error_with_a_code() -> None:
    with pytest.raises(ValueError, match="at most") as refusal:
        validation.to_json("payload", "x" * 99, max_bytes=10)
    assert isinstance(refusal.value, TenureError)
    assert (BadInput.code, PayloadTooLarge.code) == ("E-BAD-INPUT", "E-PAYLOAD-TOO-LARGE")


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=4),
    max_leaves=12,
)


@settings(derandomize=True, max_examples=300, deadline=None, database=None)
@given(anything)
def test_document_is_stored_as_it_is_or_refused_as_bad_input(value: Any) -> None:
    try:
        text = validation.to_json("payload", value)
    except BadInput:
        return
    assert json.loads(text) == value
    assert "\x00" not in text
    text.encode()
