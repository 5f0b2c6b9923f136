"""The messages of a worker's tasks, as its two threads keep them."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from tenure.sqs.inbox import Inbox, KeptMessage, read_task_id
from tenure.sqs.message_queue import Message, pointer


def received(inbox: Inbox, at: float = 0.0) -> KeptMessage:
    """A message that was received at this time."""
    return inbox.add(uuid4(), "42", Message(pointer(42), "handle", 1), at)


def test_a_message_is_kept_twice_per_visibility_while_its_task_is_claimed_or_held() -> None:
    inbox = Inbox("http://q/1/q", visibility_s=120)
    kept = received(inbox)
    assert inbox.due(59, dict) == []
    assert inbox.due(60, dict) == [kept], "its claim is under way"
    kept.keep_at = inbox.next_keep(60)
    kept.is_claimed = True
    assert inbox.due(119, lambda: {kept.token: True}) == []
    assert inbox.due(120, lambda: {kept.token: True}) == [kept]
    assert inbox.get(kept.token) is kept


def test_a_message_whose_lease_is_lost_is_kept_no_longer_and_not_forgotten_before_its_task_is() -> None:
    inbox = Inbox("http://q/1/q")
    kept = received(inbox)
    kept.is_claimed = True
    assert inbox.due(1_000, lambda: {kept.token: False}) == []
    assert inbox.get(kept.token) is kept, "its completion may still be sent"
    assert inbox.due(1_000, dict) == []
    assert inbox.get(kept.token) is None


def test_a_task_that_starts_while_the_held_ones_are_read_keeps_its_message() -> None:
    inbox = Inbox("http://q/1/q")
    kept = received(inbox)

    def held() -> dict[UUID, bool]:
        kept.is_claimed = True  # the other thread has started it, too late for this look
        return {}

    assert inbox.due(1_000, held) == [kept]
    assert inbox.get(kept.token) is kept


def test_only_one_caller_takes_a_message() -> None:
    inbox = Inbox("http://q/1/q")
    kept = received(inbox)
    assert inbox.take(kept.token) == kept.message
    assert inbox.take(kept.token) is None


def test_a_queue_that_hides_nothing_has_its_messages_hidden_for_a_second() -> None:
    assert Inbox("http://q/1/q", visibility_s=0).extension_s == 1


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("", "not JSON"), ("{", "not JSON"), ("[" * 100_000, "not JSON"), ("[]", "no task_id"), ("null", "no task_id"),
        ('{"task_id": null}', "no task_id"), ('{"task_id": 7}', "not a text"), ('{"task_id": ""}', "not a text"),
        ('{"task_id": "' + "7" * 101 + '"}', "not a text"), (r'{"task_id": "\ud800"}', "not a text"),
        (r'{"task_id": "7\u0000"}', "not a text"),
    ],
)  # fmt: skip
def test_a_body_that_is_no_pointer_is_refused_with_the_reason(body: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_task_id(body)


def test_a_pointer_gives_the_id_of_its_task() -> None:
    assert read_task_id(pointer(42)) == "42"
    assert read_task_id('{"task_id": "42", "more": 1}') == "42"
