"""What a dispatcher answers, or does not, as errors of the library; and what is said again when an answer was lost."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from tenure.app import App
from tenure.client import dispatcher_requests, remote_wakeups
from tenure.client.remote import RemoteClient
from tenure.contracts import BUILT_IN
from tenure.errors import (
    BadInput,
    Busy,
    CannotConnect,
    ConnectionLost,
    IdempotencyConflict,
    InvalidTransition,
    JobNotFound,
    NotDue,
    NotPermitted,
    PayloadTooLarge,
    Refused,
    StaleLease,
    TenureError,
    Unavailable,
    UnknownContract,
)
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import Failure, Held, NewJob
from tenure.jobs.outcome import Enqueued
from tenure.settings import Settings
from tests.holder_calls import calls
from tests.http.stub import HANG, RESET, Asked, Cut, refused, stub
from tests.worker.working import until

HELD = Held(42, 3, uuid4(), "standard", "1")
NOTE = {"id": "42", "moved": False, "lease_expires_at": None, "cancel_requested": False, "renewed": True}
MOVE = {
    "id": "42", "moved": True, "trigger": "retry", "from_state": "running", "state": "queued", "role": "ready",
    "claims": 3, "counter": 3, "at": "2026-11-15T12:03:07.123456Z", "due_at": None, "delay_ms": 5, "will_retry": True,
    "compensate": [],
}  # fmt: skip


async def error_of(told: Any) -> TenureError:
    """What is raised when a dispatcher answers so."""
    async with stub(lambda _: told) as dispatcher:
        remote = RemoteClient(dispatcher.url)
        try:
            with pytest.raises(TenureError) as raised:
                await remote.call("progress", HolderCall(HELD, value=1))
        finally:
            await remote.close()
    return raised.value


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (401, "AUTH_REQUIRED", NotPermitted),
        (403, "TENANT_SCOPE_VIOLATION", NotPermitted),
        (404, "JOB_NOT_FOUND", JobNotFound),
        (404, "NOT_FOUND", Refused),
        (408, "E-REQUEST-TIMEOUT", CannotConnect),
        (409, "LEASE_CONFLICT", StaleLease),
        (409, "INVALID_TRANSITION", InvalidTransition),
        (409, "WF_STATE_TRANSITION_INVALID", InvalidTransition),
        (409, "IDEMPOTENCY_CONFLICT", IdempotencyConflict),
        (409, "NOT_DUE", NotDue),
        (409, "BUSY", Busy),
        (409, "CANCEL_MODE", Refused),
        (413, "E-PAYLOAD-TOO-LARGE", PayloadTooLarge),
        (422, "E-BAD-INPUT", BadInput),
        (422, "E-UNKNOWN-CONTRACT", UnknownContract),
        (503, "E-CANNOT-CONNECT", CannotConnect),
        (503, "E-UNAVAILABLE", Unavailable),
        (503, "E-CONNECTION-LOST", ConnectionLost),
        (503, "E-SCHEMA-MISSING", ConnectionLost),
        (500, "LEASE_CONFLICT", ConnectionLost),
        (502, "E-CANNOT-CONNECT", ConnectionLost),
    ],
)
async def test_a_code_comes_back_as_the_class_that_it_was(status: int, code: str, kind: type[TenureError]) -> None:
    error = await error_of((status, refused(code, "no such luck", "look elsewhere")))
    assert type(error) is kind
    assert "no such luck" in str(error)
    if isinstance(error, (Refused, NotPermitted)):
        assert error.reason_code == code
        # Who has no key, or a wrong one, is told where this side takes it from.
        assert str(error).endswith("TENURE_KEY" if status == 401 else "no such luck. Next: look elsewhere")
    if isinstance(error, Refused):
        assert error.job_id == 42


@pytest.mark.parametrize(
    "told",
    [
        RESET, Cut(), (500, b"<html>oops</html>"), (504, b""), (200, b"<html>welcome</html>"), (200, b"{"),
        {"message": "ok"}, {**NOTE, "id": "forty-two"}, {**NOTE, "lease_expires_at": "soon"}, [],
        (404, {"detail": "x"}),
    ],
)  # fmt: skip
async def test_an_answer_that_is_none_may_mean_anything(told: Any) -> None:
    assert type(await error_of(told)) is ConnectionLost


async def test_a_dispatcher_that_is_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher_requests, "READ_S", 0.2)
    assert type(await error_of(HANG)) is ConnectionLost


async def test_nothing_was_done_where_nobody_listens_or_somebody_sends_us_elsewhere() -> None:
    assert type(await error_of((308, b"moved"))) is CannotConnect
    async with stub(lambda _: {}) as gone:
        pass
    remote = RemoteClient(gone.url)
    with pytest.raises(CannotConnect, match="cannot be reached"):
        await remote.contracts()
    await remote.close()


async def test_a_request_shows_the_key_and_its_own_name() -> None:
    async with stub(lambda _: NOTE) as dispatcher:
        remote = RemoteClient(f"{dispatcher.url}/below", "tenure_secret")
        assert await remote.call("progress", HolderCall(HELD, value={"at": "ü"})) == (42, None, False, True)
        await remote.call("progress", HolderCall(HELD, value=1))
        await remote.close()
    first, second = dispatcher.asked
    assert first.path == "/below/api/v1/jobs/42/progress"
    assert first.headers["authorization"] == "bearer tenure_secret"
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert first.body == {"claims": 3, "lease_token": str(HELD.token), "value": {"at": "ü"}}


async def test_what_a_holder_repeats_has_the_key_that_it_had() -> None:
    async with stub(
        lambda asked: {"answers": [MOVE] * len(asked.body["finishes"])} if asked.body else {}
    ) as dispatcher:
        remote = RemoteClient(dispatcher.url)
        for _ in range(2):
            moved = await remote.call("fail", HolderCall(HELD, failure=Failure("no")))
            assert (moved.will_retry, moved.claims, moved.delay_ms) == (True, 3, 5)
            await remote.call("snooze", HolderCall(HELD, delay_ms=1_500))
        await remote.close()
    said = [one for asked in dispatcher.asked for one in asked.body["finishes"]]
    assert [one["verb"] for one in said] == ["fail", "snooze"] * 2
    assert said[1]["seconds"] == 1.5
    keys = [one["idempotency_key"] for one in said]
    assert keys[:2] == keys[2:]
    assert len(set(keys)) == 2


async def test_each_of_many_has_its_own_answer_and_a_batch_that_is_too_heavy_goes_in_parts() -> None:
    def answer(asked: Asked) -> Any:
        return {"answers": [MOVE if one["result"] else refused("LEASE_CONFLICT") for one in asked.body["finishes"]]}

    async with stub(answer) as dispatcher:
        remote = RemoteClient(dispatcher.url)
        told = await remote.report("succeed", calls([HELD] * 3, results=["x" * 600_000, None, "ü" * 300_000]))
        assert [type(one).__name__ for one in told] == ["Moved", "StaleLease", "Moved"]
        assert len(dispatcher.asked) == 2
        assert len(await remote.report("succeed", calls([HELD] * 2_001, results=[1] * 2_001))) == 2_001
        await remote.close()
    assert [len(asked.body["finishes"]) for asked in dispatcher.asked] == [2, 1, 1_000, 1_000, 1]


async def test_what_goes_wrong_with_a_later_part_is_the_answer_to_that_part_alone() -> None:
    async with stub(lambda _: RESET if len(dispatcher.asked) > 1 else {"answers": [MOVE] * 1_000}) as dispatcher:
        remote = RemoteClient(dispatcher.url)
        told = await remote.report("succeed", calls([HELD] * 1_001, results=[1] * 1_001))
        await remote.close()
    assert {type(one).__name__ for one in told[:1_000]} == {"Moved"}
    assert type(told[1_000]) is ConnectionLost


async def test_a_job_is_made_once_when_the_answer_is_lost_twice() -> None:
    async with stub(
        lambda _: (RESET, Cut(), {"jobs": [{"id": "7", "made": False}]})[len(dispatcher.asked) - 1]
    ) as dispatcher:
        remote = RemoteClient(dispatcher.url)
        moment = datetime(2026, 11, 15, 12, tzinfo=UTC)
        made = await remote.enqueue(NewJob("t", {"a": 1}, run_at=moment, max_attempts=2))
        await remote.close()
    assert made == Enqueued(7, True)  # a key that nobody else has: this call made it
    sent = [asked.body["jobs"][0] for asked in dispatcher.asked]
    assert sent[0] == sent[1] == sent[2]
    assert sent[0].pop("idempotency_key").startswith("made:")
    assert sent[0] == {
        "type": "t", "payload": {"a": 1}, "contract": "standard", "queue": "default", "priority": 5, "max_attempts": 2,
        "run_at": "2026-11-15T12:00:00+00:00",
    }  # fmt: skip


async def test_whoever_makes_a_job_hears_in_the_end_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher_requests, "_TRIES", 2)
    async with stub(lambda _: RESET) as dispatcher, App(dispatcher_url=dispatcher.url) as app:
        with pytest.raises(ConnectionLost, match="may or may not"):
            await app._enqueue(NewJob("t", key="mine"))
    assert [asked.body["jobs"][0]["idempotency_key"] for asked in dispatcher.asked] == ["mine", "mine"]


async def test_one_bad_job_of_many_is_its_own_fault() -> None:
    async with stub(lambda _: {"jobs": [{"id": "1", "made": True}, refused("E-BAD-INPUT", "bad")]}) as dispatcher:
        remote = RemoteClient(dispatcher.url)
        good, bad = await asyncio.gather(
            remote.enqueue(NewJob("t")), remote.enqueue(NewJob("t", max_attempts=-1)), return_exceptions=True
        )
        assert good == Enqueued(1, True)
        assert type(bad) is BadInput
        with pytest.raises(BadInput, match=r"^job 2 of 2: payload is not JSON"):
            await remote.prepare([NewJob("t"), NewJob("t", float("nan"))])
        await remote.close()
    assert len(dispatcher.asked) == 1


async def test_types_that_a_key_may_not_declare_are_left_out_and_a_worker_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def answer(asked: Asked) -> Any:
        if asked.path.endswith("/contracts"):
            return {"contracts": []}
        return {"jobs": [{"id": "1", "made": True}]} if asked.method == "POST" else (403, refused("AUTH_FORBIDDEN"))

    async with stub(answer) as dispatcher, App(dispatcher_url=dispatcher.url) as app:

        @app.task(lease=5)
        async def work() -> None: ...

        for _ in range(2):
            assert (await work.enqueue()).id == 1
        assert caplog.messages == []  # who only makes jobs cannot help it
        assert dispatcher.asked[0].body["types"][0]["lease_ttl_sec"] == 5
        assert len(dispatcher.of("/api/v1/types")) == 1
    async with stub(answer) as dispatcher, App(dispatcher_url=dispatcher.url) as app:
        app.task(lease=5)(work.function)
        with pytest.raises(TenureError):
            await app.worker(contracts=["none"]).run(until_idle=True)
    assert [record.levelname for record in caplog.records if record.name == "tenure"] == ["WARNING"]
    assert "may not declare the options of" in caplog.text


async def test_contracts_have_the_numbers_of_the_dispatcher() -> None:
    bound = BUILT_IN["gate_b2"].with_numbers({"lease_ms": 9_000})
    told = {"contracts": [{"name": "gate_b2", "version": "1", "declaration": bound.describe()}]}
    async with stub(lambda _: told) as dispatcher:
        remote = RemoteClient(dispatcher.url)
        assert await remote.contracts() == {"gate_b2": bound}
        await remote.close()


async def test_hearing_wake_ups_never_spins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_wakeups, "_NOTHING_S", 3_600)
    heard: list[tuple[str, str]] = []
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 7:
            await asyncio.Event().wait()

    monkeypatch.setattr(remote_wakeups, "asyncio", SimpleNamespace(sleep=pause))
    news = [{"contract": "", "queue": ""}, {"contract": "#", "queue": "42"}, {"contract": "simple", "queue": "mail"}]

    def answer(asked: Asked) -> Any:
        n = len(dispatcher.asked)
        return (RESET if n == 2 else {"wakeups": [news[n // 2]], "cursor": f"c{n}"}) if n < 6 else {
            "wakeups": [], "cursor": f"c{n}"
        }  # fmt: skip

    async with stub(answer) as dispatcher:
        remote = RemoteClient(dispatcher.url)
        listening = asyncio.create_task(remote.listen(lambda *named: heard.append(named)))
        await until(lambda: len(pauses) == 7, 60)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await remote.close()
    assert heard == [("", ""), ("#", "42"), ("simple", "mail"), ("simple", "mail")]
    # A pause after each answer, a long one where it said nothing; the second question was not answered.
    assert len(dispatcher.asked) == len(pauses) + 1
    assert [seconds > 1_800 for seconds in pauses] == [False] * 4 + [True] * 3
    assert min(pauses) > 0
    assert [asked.query for asked in dispatcher.asked[:4]] == [
        "wait_seconds=25", "wait_seconds=25&after=c1", "wait_seconds=25&after=c1", "wait_seconds=25&after=c3",
    ]  # fmt: skip


async def test_an_app_behind_a_dispatcher_has_no_database() -> None:
    async with App("postgresql://nowhere", dispatcher_url="http://localhost:9", settings=Settings()) as app:

        @app.task
        async def work() -> None: ...

        with pytest.raises(BadInput, match="enqueue after the commit"):
            work.enqueue_in(object())  # type: ignore[call-overload]
        with pytest.raises(BadInput, match="needs a database connection"):
            app.database_url()


def test_the_way_to_a_dispatcher_is_read_from_the_environment() -> None:
    read = Settings.load({"TENURE_DISPATCHER_URL": "https://tenure.example.com:8443/in/", "TENURE_KEY": "tenure_x"})
    assert (read.dispatcher_url, read.key) == ("https://tenure.example.com:8443/in", "tenure_x")
    assert "tenure_x" not in repr(read)
    assert Settings.load({"TENURE_DISPATCHER_URL": "", "TENURE_KEY": ""}).dispatcher_url is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TENURE_DISPATCHER_URL", "tenure.example.com"),
        ("TENURE_DISPATCHER_URL", "postgresql://h/d"),
        ("TENURE_DISPATCHER_URL", "http://"),
        ("TENURE_DISPATCHER_URL", "http://h:port"),
        ("TENURE_DISPATCHER_URL", "http://h:99999"),
        ("TENURE_DISPATCHER_URL", "http://user:hidden@h"),
        ("TENURE_DISPATCHER_URL", "http://h/?key=hidden"),
        ("TENURE_DISPATCHER_URL", "http://h/ "),
        ("TENURE_KEY", "hidden\n"),
        ("TENURE_KEY", "hidden key"),
        ("TENURE_KEY", "hidden€"),
    ],
)
def test_an_address_or_key_that_is_none_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(BadInput, match=f"^{name} ") as raised:
        Settings.load({name: value})
    assert "hidden" not in str(raised.value)
