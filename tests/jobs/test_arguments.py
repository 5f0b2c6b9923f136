"""What a task takes: calls bound as Python binds them, refused in its words, and made again from what was stored."""

from __future__ import annotations

import json
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.errors import BadInput, PermanentError, ValidationError
from tenure.jobs.arguments.signature import Signature
from tenure.jobs.job import Failure, Job, NewJob
from tenure.postgres.store import Store
from tests.contracts.reliability import assigned, events, letters, make, running, shown
from tests.harness import Harness

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]


def called(function: Callable[..., Any], *args: Any, skip: tuple[str, ...] = (), **kwargs: Any) -> Any:
    """What the function returns when it is called with what was stored of this call."""
    signature = Signature(function, skip)
    back, named = signature.arguments(json.loads(json.dumps(signature.payload(args, kwargs))))
    return function(*back, **named, **dict.fromkeys(skip, "filled"))


def refused(function: Callable[..., Any], *args: Any, skip: tuple[str, ...] = (), **kwargs: Any) -> str:
    """With what words this call is refused."""
    with pytest.raises(BadInput) as refusal:
        Signature(function, skip).payload(args, kwargs)
    return str(refusal.value)


def invalid(function: Callable[..., Any], payload: Any, skip: tuple[str, ...] = ()) -> tuple[str, str]:
    """For what reason, and with what words, this payload is refused."""
    with pytest.raises(ValidationError) as refusal:
        Signature(function, skip).arguments(payload)
    return refusal.value.reason, str(refusal.value)


async def send(to: str, *, subject: str = "hello") -> int:
    return len(to + subject)


def every_kind(a: int, /, b: int, c: int = 3, *rest: int, d: int, e: int = 5, **more: int) -> Any:
    return a, b, c, rest, d, e, more


def by_position(a: int = 1, b: int = 2, /) -> Any:
    return a, b


def test_a_call_is_stored_by_name_and_what_was_not_passed_is_not_stored() -> None:
    assert Signature(send).payload(("a@b.c",), {}) == {"to": "a@b.c"}
    assert Signature(send).payload((), {"subject": "hi", "to": "a@b.c"}) == {"to": "a@b.c", "subject": "hi"}
    assert Signature(every_kind).payload((1, 2), {"d": 4}) == {"a": 1, "b": 2, "d": 4}
    assert Signature(every_kind).payload((1, 2, 3, 4, 5), {"d": 4, "a": 7, "z": 8}) == {
        "a": 1, "b": 2, "c": 3, "rest": [4, 5], "d": 4, "more": {"a": 7, "z": 8},
    }  # fmt: skip


def test_a_default_that_changes_later_is_the_one_that_applies() -> None:
    def before(to: str, subject: str = "hello") -> str:
        return to + subject

    def after(to: str, subject: str = "good day") -> str:
        return to + subject

    back, named = Signature(after).arguments(Signature(before).payload(("you: ",), {}))
    assert after(*back, **named) == "you: good day"


small = st.integers(-9, 9)


@settings(derandomize=True, max_examples=200, deadline=None, database=None)
@given(
    st.lists(small, max_size=6),
    st.dictionaries(st.sampled_from(["a", "b", "c", "d", "e", "rest", "more", "z", "_", "bind"]), small),
)
def test_a_stored_call_does_what_the_call_itself_would_do_or_is_refused_in_the_same_words(
    args: list[int], kwargs: dict[str, int]
) -> None:
    for function in (every_kind, by_position, lambda *b, _=0, **bind: (b, _, bind), lambda a=1, b=2, *c: (a, b, c)):
        expected: Any = None
        words = ""
        try:
            expected = function(*args, **kwargs)
        except TypeError as error:
            words = f": {error}. Next: call it as "
        if words:
            assert words in refused(function, *args, **kwargs)  # type: ignore[arg-type]
        else:
            assert called(function, *args, **kwargs) == expected  # type: ignore[arg-type]


def test_a_wrong_call_says_which_task_and_how_it_is_called() -> None:
    assert refused(send) == (
        "task 'send': send() missing 1 required positional argument: 'to'. "
        "Next: call it as send(to: 'str', *, subject: 'str' = 'hello') -> 'int'"
    )
    with pytest.raises(BadInput, match=r"^task 'mail\.send': send\(\) got an unexpected keyword argument 'cc'"):
        Signature(send, name="mail.send").payload(("a",), {"cc": "b"})


def test_what_the_worker_fills_in_is_not_part_of_the_call() -> None:
    def first(ctx: Any, to: str, subject: str = "hello") -> Any:
        return ctx, to, subject

    def last(to: str, *rest: str, ctx: Any, **more: str) -> Any:
        return to, rest, ctx, more

    assert called(first, "a", skip=("ctx",)) == ("filled", "a", "hello")
    assert called(last, "a", "b", x="y", skip=("ctx",)) == ("a", ("b",), "filled", {"x": "y"})
    assert "unexpected keyword argument 'ctx'" in refused(first, "a", ctx=1, skip=("ctx",))
    assert "argument 'ctx' of task 'last' is filled in by the worker" in refused(last, "a", ctx=1, skip=("ctx",))
    assert "filled in by the worker" in invalid(last, {"to": "a", "more": {"ctx": "x"}}, ("ctx",))[1]


def test_what_the_worker_fills_in_must_be_taken_by_name() -> None:
    def only_by_position(ctx: Any, /) -> None: ...

    def before_the_rest(ctx: Any, *rest: int) -> None: ...

    for function in (only_by_position, before_the_rest):
        with pytest.raises(BadInput, match=r"parameter 'ctx' of task .* Next: put it behind the \*"):
            Signature(function, ("ctx",))


@pytest.mark.parametrize("payload", [None, 1, "send", ["a@b.c"], [], True])
def test_a_payload_that_is_no_object_is_a_parse_error(payload: Any) -> None:
    reason, words = invalid(send, payload)
    assert reason == "parse_error"
    assert words.startswith(f"the payload of task 'send' is no object of arguments, but {payload!r}. Next: ")


def test_a_payload_with_other_arguments_says_which_are_missing_and_which_nobody_takes() -> None:
    for payload, words in (
        ({}, "it lacks 'to'. Next"),
        ({"to": "a", "cc": "b", "bcc": "c"}, "it has 'cc', 'bcc', which the task does not take"),
        ({"cc": "b"}, "it lacks 'to' and it has 'cc', which the task does not take"),
    ):
        reason, said = invalid(send, payload)
        assert reason == "validation_failed"
        assert f"the payload of task 'send' does not fit: {words}" in said
    assert (
        "argument 'b' of task 'every_kind' does not fit: it is given twice"
        in (invalid(every_kind, {"a": 1, "b": 2, "d": 3, "more": {"b": 9}})[1])
    )


def test_a_payload_that_others_wrote_may_leave_out_what_has_a_default() -> None:
    back, named = Signature(by_position).arguments({"b": 9})
    assert by_position(*back, **named) == (1, 9)
    back, named = Signature(every_kind).arguments({"a": 1, "b": 2, "rest": [7], "d": 4})
    assert every_kind(*back, **named) == (1, 2, 3, (7,), 4, 5, {})


def test_an_argument_that_does_not_fit_is_named_with_its_place() -> None:
    assert invalid(every_kind, {"a": 1, "b": "2", "d": 4}) == (
        "validation_failed",
        "argument 'b' of task 'every_kind' does not fit: Input should be a valid integer, not '2'. "
        "Next: correct it and enqueue it again",
    )
    assert "argument 'rest[1]' of task" in invalid(every_kind, {"a": 1, "b": 2, "d": 3, "rest": [1, True]})[1]
    assert "argument 'more.z' of task" in invalid(every_kind, {"a": 1, "b": 2, "d": 3, "more": {"z": None}})[1]
    assert (
        "argument 'rest' of task 'every_kind' does not fit: Input should be a valid list"
        in (invalid(every_kind, {"a": 1, "b": 2, "d": 3, "rest": {}})[1])
    )


def test_a_value_that_the_worker_could_not_take_is_refused_when_it_is_passed() -> None:
    assert refused(send, 5).startswith(
        "argument 'to' of task 'send' does not fit its type hint: Input should be a valid string, not 5. "
        "Next: call it as send("
    )
    assert "argument 'rest[0]' of task" in refused(every_kind, 1, 2, 3, "4", d=5)


def test_what_is_not_json_is_refused_with_its_place_and_what_to_do() -> None:
    def pay(order: Any, **more: Any) -> None: ...

    with socket.socket() as line:
        assert refused(pay, line) == (
            "argument 'order' of task 'pay' cannot be stored: a socket is not JSON. "
            "Next: pass its id or its plain values, and let the task find it"
        )
        assert "argument 'order.lines[2].price' of" in refused(pay, {"lines": [1, 2, {"price": line}]})
        assert "argument \"order['the price']\" of" in refused(pay, {"the price": line})
        assert "argument 'more.x[0]' of" in refused(pay, 1, x=[line])
    knot: list[Any] = []
    knot.append(knot)
    assert "'order' of task 'pay' cannot be stored: it is nested too deep, or contains itself" in refused(pay, knot)


def test_hints_that_cannot_be_resolved_leave_the_value_as_it_is_and_the_others_work() -> None:
    def task(when: datetime, what: Unknown, some: list[Unknown], **more: Any) -> Any:
        return when, what, some

    moment = datetime(2030, 1, 1, tzinfo=UTC)
    assert called(task, moment, {"x": 1}, [2]) == (moment, {"x": 1}, [2])
    assert "argument 'when'" in invalid(task, {"when": "soon", "what": 1, "some": 2})[1]


def test_a_default_of_none_allows_none() -> None:
    def task(to: str = None) -> Any:  # type: ignore[assignment]  # noqa: RUF013
        return to

    assert called(task, None) is None
    assert "Input should be a valid string" in invalid(task, {"to": 5})[1]


class Options(TypedDict):
    until: datetime


def with_options(**options: Unpack[Options]) -> datetime:
    return options["until"]


def test_unpacked_options_are_read_by_their_own_hints() -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    assert called(with_options, until=moment) == moment


def test_a_result_is_stored_as_json_or_refused_for_good() -> None:
    def plain() -> Any: ...

    def counted() -> dict[int, datetime]:
        return {}

    moment = datetime(2030, 1, 1, tzinfo=UTC)
    assert Signature(plain).result({"at": moment, "n": (1, None)}) == {"at": moment.isoformat(), "n": [1, None]}
    assert Signature(counted).result({1: moment}) == {"1": moment.isoformat()}
    with pytest.raises(PermanentError, match=r"^the result\.a\[1\] of task 'plain' cannot be stored: an object is not"):
        Signature(plain).result({"a": [1, object()]})
    with pytest.raises(PermanentError, match=r"^the result\['1'\] of task 'plain' cannot be stored: an int as a key"):
        Signature(plain).result({1: 2})
    knot: list[Any] = []
    knot.append(knot)
    with pytest.raises(PermanentError, match="contains itself"):
        Signature(plain).result(knot)


def test_the_reason_of_a_refusal_travels_between_processes() -> None:
    error = pickle.loads(pickle.dumps(ValidationError("no", reason="parse_error")))
    assert (str(error), error.reason, ValidationError("no").reason) == ("no", "parse_error", "validation_failed")


async def told(store: Store, job: Job, function: Callable[..., Any]) -> None:
    """Report what the payload's arguments are refused for, as the worker does."""
    with pytest.raises(ValidationError) as refusal:
        Signature(function, name=job.type).arguments(job.payload)
    error = refusal.value
    await store.fail(job.held, Failure(str(error), type="ValidationError", code=error.reason, stage="input"))


@pytest.mark.parametrize("standing", ["assigned", "running"])
@pytest.mark.parametrize(
    ("payload", "reason"), [(["a@b.c"], "parse_error"), ({"to": 5}, "validation_failed"), ({}, "validation_failed")]
)
async def test_a_payload_that_does_not_fit_is_dead_lettered_for_its_reason_at_once(
    store: Store, db: Harness, payload: Any, reason: str, standing: str
) -> None:
    job_id = await make(store, payload=payload)
    job = await (running if standing == "running" else assigned)(store)
    await told(store, job, send)
    (letter,) = letters(db, job_id)
    assert (letter["reason_code"], letter["stage"], letter["payload"]) == (reason, "input", payload)
    assert (shown(db, job_id)["status"], letter["attempts"]) == ("dead_lettered", 1)
    assert events(db, job_id)[-1]["payload"]["reason"] == reason
    assert "task 'index'" in letter["last_error"]["message"]


async def test_what_postgresql_does_to_numbers_is_undone_by_the_hints(store: Store) -> None:
    def task(x: float, many: list[float], wait: timedelta, price: Decimal, by_day: dict[date, int]) -> None: ...

    signature, day = Signature(task), date(2030, 1, 1)
    args = (1e300, [1e22, 5e-324, -2.5, 7.0], timedelta(seconds=1.5), Decimal("1.50"), {day: 2**70})
    await store.enqueue(NewJob("task", signature.payload(args, {})))
    (job,) = await store.claim("standard", worker="w1")
    assert isinstance(job.payload["x"], int)
    _, named = signature.arguments(job.payload)
    assert tuple(named.values()) == args
    assert {type(number) for number in [named["x"], *named["many"]]} == {float}
    assert str(named["price"]) == "1.50"


async def test_a_code_that_is_no_reason_of_the_contract_changes_nothing(store: Store, db: Harness) -> None:
    for kind, code, status, reasons in (
        ("ValidationError", "PARSE_ERROR", "dead_lettered", ["validation_failed"]),
        ("PermanentError", "parse_error", "failed", []),
        ("TransientError", "parse_error", "dead_lettered", ["exhausted_retries"]),
    ):
        job_id = await make(store, max_attempts=1)
        await store.fail((await running(store)).held, Failure("no", type=kind, code=code))
        assert shown(db, job_id)["status"] == status
        assert [letter["reason_code"] for letter in letters(db, job_id)] == reasons


def test_pydantic_is_not_loaded_for_tasks_that_do_not_use_it() -> None:
    source = "import sys, tenure.jobs.arguments.signature; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 0


def test_plain_calls_run_three_functions_and_no_more() -> None:
    signature, ran = Signature(send), list[str]()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: ran.append(frame.f_code.co_qualname) if event == "call" else None)
    try:
        signature.arguments(signature.payload(("a@b.c",), {"subject": "hi"}))
    finally:
        sys.setprofile(before)
    assert len(ran) == 3, f"one stores, one binds as Python does, one takes it back: {ran}"
