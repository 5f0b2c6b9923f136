"""Sinks of alarms: signed webhooks that reach no private network, commands without a shell, the log; repeated tries."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tenure.errors import BadInput
from tenure.jobs.alarm import Notice
from tenure.postgres.doctor.examination import examine
from tenure.postgres.store import Store
from tenure.settings import Settings
from tenure.upkeep import AlarmWatch, Upkeep
from tenure.upkeep.alarm_sinks import CommandSink, LogSink, NotSent, WebhookSink, is_public, send_notices, sinks_of
from tests.harness import Harness

SECRET = "a secret of the two"


class Receiver:
    """A receiver of webhooks on this machine: what it got, and what it answers."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.status, self.location = 204, ""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.append((self.path, dict(self.headers), body))
                self.send_response(receiver.status)
                if receiver.location:
                    self.send_header("Location", receiver.location)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hooks?team=ops"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver that runs."""
    made = Receiver()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
async def notice(store: Store) -> Notice:
    """The notice of an alarm."""
    await store.alarms.test("ada")
    (taken,) = await store.alarms.take("a test", hold_s=60)
    return taken


async def test_a_webhook_is_signed_with_its_time(receiver: Receiver, notice: Notice) -> None:
    await WebhookSink(receiver.url, SECRET, may_be_private=True, now=lambda: 1_700_000_000.7).send(notice)
    ((path, headers, body),) = receiver.got
    signature = hmac.new(SECRET.encode(), b"1700000000." + body, hashlib.sha256).hexdigest()
    assert headers["Tenure-Signature"] == f"t=1700000000,v1={signature}"
    assert (path, headers["Tenure-Notice"]) == ("/hooks?team=ops", f"alarm-{notice.alarm.id}-fired")
    said = json.loads(body)
    assert (said["change"], said["alarm"]["kind"], said["alarm"]["severity"]) == ("fired", "test", "P3")


async def test_a_webhook_reaches_no_private_network_unless_that_is_allowed(receiver: Receiver, notice: Notice) -> None:
    for url in (receiver.url, receiver.url.replace("127.0.0.1", "localhost")):
        with pytest.raises(NotSent, match=r"private network.*TENURE_ALARM_WEBHOOK_PRIVATE=1"):
            await WebhookSink(url, SECRET).send(notice)
    assert receiver.got == []


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.3.4", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fec0::1", "fc00::1", "fd12::1", "ff02::1",
        "::ffff:127.0.0.1", "::ffff:10.1.1.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::",
    ],
)  # fmt: skip
def test_an_address_of_this_machine_or_a_private_network_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.215.14", "8.8.8.8", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"])
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(address)


async def test_the_connection_goes_to_the_address_that_was_judged(
    monkeypatch: pytest.MonkeyPatch, notice: Notice
) -> None:
    answers = [["93.184.215.14"], ["127.0.0.1"]]
    reached: list[str] = []

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in answers.pop(0)]

    def connect(address: tuple[str, int], **_: Any) -> socket.socket:
        reached.append(address[0])
        raise ConnectionRefusedError("nobody is here")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(NotSent, match="nobody is here"):
        await WebhookSink("https://alerts.example/x", SECRET).send(notice)
    assert reached == ["93.184.215.14"]
    answers[:] = [["93.184.215.14", "10.0.0.1"]]
    with pytest.raises(NotSent, match=r"10\.0\.0\.1, which is on"):
        await WebhookSink("https://alerts.example/x", SECRET).send(notice)
    assert len(reached) == 1, "one private address is enough to refuse all"


async def test_a_redirect_is_not_followed(receiver: Receiver, notice: Notice) -> None:
    receiver.status, receiver.location = 307, receiver.url.replace("hooks", "elsewhere")
    with pytest.raises(NotSent, match="it answered 307, and redirects are not followed"):
        await WebhookSink(receiver.url, SECRET, may_be_private=True).send(notice)
    assert len(receiver.got) == 1


async def test_a_notice_is_tried_again_later_and_later_and_sent_once(
    receiver: Receiver, store: Store, db: Harness, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.status = 500
    sinks = [WebhookSink(receiver.url, SECRET, may_be_private=True)]
    await store.alarms.test("ada")
    waits = []
    for tries in range(1, 4):
        assert await send_notices(store, sinks) == 0
        assert await send_notices(store, sinks) == 0, "not before its time"
        row = db.one("select tries, error, next_at - clock_timestamp() as wait from tenure.alarm_notice")
        assert (row["tries"], row["error"]) == (tries, "it answered 500")
        waits.append(round(row["wait"].total_seconds(), -1))
        db.sql("update tenure.alarm_notice set next_at = now()")
    assert waits == [10, 20, 40]
    assert len(receiver.got) == 3
    assert "could not be sent to the webhook: it answered 500" in caplog.text
    assert "alarm-not-sent" in {one.code for one in await examine(dsn)}
    receiver.status = 200
    assert await send_notices(store, sinks) == 1
    db.sql("update tenure.alarm_notice set next_at = now()")
    assert await send_notices(store, sinks) == 0
    await store.alarms.evaluate(pause_s=0.0)
    assert await send_notices(store, sinks) == 1
    assert [json.loads(body)["change"] for *_, body in receiver.got] == ["fired"] * 4 + ["cleared"]
    assert await send_notices(store, sinks) == 0


async def test_nobody_learns_that_an_alarm_is_over_who_never_heard_of_it(store: Store, db: Harness) -> None:
    await store.alarms.test("ada")
    await store.alarms.evaluate(pause_s=0.0)
    db.sql("update tenure.alarm set cleared_at = cleared_at - interval '11 min'")
    assert await store.alarms.take("webhook", hold_s=60) == []


async def test_a_command_gets_the_notice_and_no_shell(notice: Notice, tmp_path: Path) -> None:
    target = tmp_path / "it; touch x"
    program = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"
    await CommandSink(f"{sys.executable} -c \"{program}\" '{target}'").send(notice)
    assert json.loads(target.read_text())["alarm"]["id"] == str(notice.alarm.id)
    for command, why in (
        (f"{sys.executable} -c 'import sys; sys.exit(\"no disk\")'", "ended with 1: no disk"),
        ("/no/such/program", "/no/such/program cannot be run: No such file or directory"),
    ):
        with pytest.raises(NotSent, match=why):
            await CommandSink(command).send(notice)
    with pytest.raises(NotSent, match=r"did not end within 0\.1 s"):
        await CommandSink("sleep 1000", timeout_s=0.1).send(notice)


async def test_the_log_has_a_line_when_an_alarm_fires_and_one_when_it_is_over(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "tenure.alarms"):
        await store.alarms.test("ada")
        assert await send_notices(store, [LogSink()]) == 1
        assert await send_notices(store, [LogSink()]) == 0
        await store.alarms.evaluate(pause_s=0.0)
        assert await send_notices(store, [LogSink()]) == 1
    first, second = [record.getMessage() for record in caplog.records if record.name == "tenure.alarms"]
    assert first.startswith("P3 alarm ")
    assert "test: ada tests the sinks of alarms. Next:" in first
    assert "is over" in second


async def test_upkeep_has_the_sinks_and_thresholds_of_the_settings(store: Store) -> None:
    settings = Settings.load(
        {
            "TENURE_ALARM_WEBHOOK": "https://alerts.example/tenure", "TENURE_ALARM_WEBHOOK_SECRET": SECRET,
            "TENURE_ALARM_COMMAND": "notify --now", "TENURE_ALARM_RETRYING_SHARE": "0.5",
            "TENURE_ALARM_DLQ_WINDOW": "20m", "TENURE_ALARM_INVALID_TRANSITIONS": "3",
        }
    )  # fmt: skip
    assert [sink.name for sink in sinks_of(settings)] == ["log", "webhook", "command"]
    watch = AlarmWatch.configured(settings)
    assert watch is not None
    assert (watch.limits.retrying_share, watch.limits.dlq_window_s, watch.limits.invalid_transitions) == (0.5, 1200, 3)
    assert AlarmWatch.configured(Settings.load({"TENURE_ALARMS": "off"})) is None
    ours = Upkeep.configured(store, settings, "")._alarms
    assert ours is not None
    assert ours.limits == watch.limits
    assert SECRET not in repr(settings)


@pytest.mark.parametrize(
    "wrong",
    [
        {"TENURE_ALARM_WEBHOOK": "https://alerts.example"},
        {"TENURE_ALARM_WEBHOOK": "ftp://alerts.example", "TENURE_ALARM_WEBHOOK_SECRET": SECRET},
        {"TENURE_ALARM_WEBHOOK": "https://u:p@alerts.example", "TENURE_ALARM_WEBHOOK_SECRET": SECRET},
        {"TENURE_ALARM_WEBHOOK_SECRET": "short"},
        {"TENURE_ALARM_COMMAND": "notify 'open"},
        {"TENURE_ALARM_RETRYING_SHARE": "1.5"},
        {"TENURE_ALARM_RETRYING_FOR": "soon"},
        {"TENURE_ALARM_INVALID_TRANSITIONS": "0"},
        {"TENURE_ALARMS": "yes"},
    ],
)
def test_a_wrong_setting_of_alarms_is_refused_by_its_name(wrong: dict[str, str]) -> None:
    with pytest.raises(BadInput, match=next(iter(wrong))):
        Settings.load(wrong)
