"""The example applications run as their READMEs say: real servers, workers as processes, requests over loopback."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.harness import Harness
from tests.integrations.processes import EXAMPLES, free_port, python, running, wait_for, web

FASTAPI, DJANGO = EXAMPLES / "fastapi_shop", EXAMPLES / "django_shop"


@pytest.mark.parametrize("place", ["inside", "beside"])
def test_the_fastapi_shop_confirms_what_it_stored_and_nothing_else(
    place: str, dsn: str, db: Harness, tmp_path: Path
) -> None:
    port, log = free_port(), tmp_path / "web"
    server = ("-m", "uvicorn", "shop:api", "--port", str(port))
    with web(dsn, FASTAPI, log, *server, port=port, WORKER=place) as client:
        made = client.post("/orders", json={"email": "ada@example.org", "amount": 3})
        assert made.status_code == 201
        assert client.post("/orders", json={"email": "bob@example.org", "amount": 0}).status_code == 422
        order = made.json()["id"]
        if place == "beside":
            assert client.get(f"/orders/{order}").json() == {"confirmed": False}
            python(dsn, FASTAPI, "-m", "tenure", "worker", "shop:app", "--until-idle")
        wait_for(lambda: db.row(made.json()["job"])["state"] == "succeeded", "the end of the job", log)
        assert client.get(f"/orders/{order}").json() == {"confirmed": True}
        assert db.value("select count(*) from shop_order") == 1
        assert db.value("select count(*) from tenure.job") + db.value("select count(*) from tenure.job_done") == 1
        client.process.send_signal(signal.SIGTERM)
        client.process.wait(60)
        said = log.read_text(encoding="utf-8")
        assert "Application shutdown complete" in said
        assert "Traceback" not in said
    assert db.value("select count(*) from tenure.worker") == 0


def test_the_django_shop_confirms_what_it_stored_and_nothing_else(empty_dsn: str, tmp_path: Path) -> None:
    port, log, worker_log = free_port(), tmp_path / "web", tmp_path / "worker"
    said = python(empty_dsn, DJANGO, "manage.py", "migrate").stdout
    assert "Tenure: applied" in said
    assert "Tenure" not in python(empty_dsn, DJANGO, "manage.py", "migrate").stdout  # nothing is left to do
    assert "no issues" in python(empty_dsn, DJANGO, "manage.py", "check", "--database", "default").stdout
    server = ("manage.py", "runserver", "--noreload", str(port))
    with Harness(empty_dsn) as db, web(empty_dsn, DJANGO, log, *server, port=port) as client:
        made = client.post("/orders", json={"email": "ada@example.org", "amount": 3})
        assert made.status_code == 201, made.text
        assert client.post("/orders", json={"email": "bob@example.org", "amount": 0}).status_code == 400
        assert db.value("select count(*) from tenure.job") == 2
        where = f"/orders/{made.json()['id']}"
        assert client.get(where).json() == {"packed": False, "confirmation": "READY"}
        with running(empty_dsn, DJANGO, worker_log, "manage.py", "tenure", "worker", "--poll", "0.05") as worker:
            done = {"packed": True, "confirmation": "SUCCESSFUL"}
            wait_for(lambda: client.get(where).json() == done, "the end of both jobs", worker_log)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0
        said = worker_log.read_text(encoding="utf-8")
        assert "works on mail, default, 50 at a time" in said
        assert "Dear ada@example.org, thank you for order 1" in said
        assert db.value("select count(*) from shop_order") == 1
