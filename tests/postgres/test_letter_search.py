"""Searches for dead letters: every filter, page by page, along an index or over a bounded number of rows."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.errors import BadInput, UnknownContract
from tenure.jobs.job import Failure
from tenure.jobs.search import filters_of, parse_letters
from tenure.postgres import dead_letters
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.postgres.test_letter_groups import broken, fail


async def found(store: Store, text: str = "", limit: int = 100, **more: Any) -> list[int]:
    """The ids of all letters that a text finds, over all pages."""
    letters: list[int] = []
    after: int | None = None
    while True:
        page = await store.letters.search(**filters_of(parse_letters(text)), limit=limit, after=after, **more)
        assert len(page.letters) <= limit
        letters += [letter.id for letter in page.letters]
        if (after := page.next) is None:
            return letters


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_each_filter_and_all_together(store: Store, db: Harness, limit: int) -> None:
    first = await fail(store, [broken("send", n, "1.0") for n in range(3)])
    second = await fail(store, [broken("receive", 1, "1.1")], "gate_b2", tenant="zeta")
    third = await fail(store, [Failure("Mailbox full", "ValidationError", "FULL", retryable=False)], type="other")
    while await store.groups.count_changes():
        pass
    await store.letters.requeue(first[0], actor="ada")
    db.sql("update tenure.dead_letter set created_at = created_at - interval '2 hours' where id = %s", first[1])
    groups = {group.letter_id: group.fingerprint for group in await store.groups.list()}
    a, b, c = first
    (d,), (e,) = second, third
    for text, expected in (
        ("", [e, d, c, b, a]), ("status:open", [e, d, c, b]), ("status:requeued", [a]), ("tenant:zeta", [d]),
        ("contract:standard", [e, c, b, a]), ("status:open contract:standard tenant:acme", [e, c, b]),
        (f"group:{groups[c]}", [c, b, a]), (f"group:{groups[c]} status:open", [c, b]), ("group:nope", []),
        ("release:1.1", [d]), ("release:unknown", [e]), ("worker:w", [e, d, c, b, a]),
        ("worker:w2", []), ("release:1.0 status:open", [c, b]), ("type:other", [e]),
        ("queue:default", [e, d, c, b, a]),
        ("reason:permanent_error", [c, b, a]), ("error:mailbox", [e]), ("error:FULL", [e]), ("payload.n:2", [c]),
        ("payload.n:0 type:other", [e]), ("age:>1h", [b]), ("age:<1h status:open", [e, d, c]),
        (f"group:{groups[d]} tenant:zeta contract:gate_b2 error:no release:1.1 payload.n:0 age:<1h status:open", [d]),
    ):  # fmt: skip
        assert await found(store, text, limit) == expected, text


async def test_a_filter_that_matches_little_stops_and_says_where_to_go_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "SCAN_DOCUMENTS", 4)
    letters = await fail(store, [broken("send", n) for n in range(10)])
    page = await store.letters.search(payload=[(("n",), "0")], limit=2)
    assert (page.letters, page.next, page.stopped) == ([], letters[6], True)
    assert await found(store, "payload.n:0", 2) == [letters[0]]
    assert (await store.letters.search(status="open", limit=2)).stopped is False


async def test_documents_are_read_only_where_they_are_wanted(store: Store) -> None:
    await fail(store, [broken("send")])
    (letter,) = (await store.letters.search()).letters
    assert (letter.payload, letter.last_error["code"]) == ({"n": 0}, "Broken")
    (letter,) = (await store.letters.search(documents=False)).letters
    assert (letter.payload, letter.last_error) == (
        None, {"type": "PermanentError", "code": "Broken", "message": "no 0"}
    ), "no payload and no traceback"  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"contract": "nope"}, UnknownContract), ({"tenant_id": " "}, BadInput), ({"status": "lost"}, BadInput),
        ({"limit": 0}, BadInput), ({"after": 0}, BadInput), ({"group": ""}, BadInput), ({"release": " "}, BadInput),
    ],
)  # fmt: skip
async def test_a_search_that_cannot_be_meant_is_refused(store: Store, wrong: Any, error: type[BadInput]) -> None:
    with pytest.raises(error):
        await store.letters.search(**wrong)
