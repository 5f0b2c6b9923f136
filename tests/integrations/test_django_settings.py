"""What Django's checks and Tenure say about settings, and what `manage.py migrate` does to the schema."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connections
from django.utils import timezone
from django_tasks import task_backends

from tenure import testing
from tenure.errors import BadInput, SchemaMissing
from tests.harness import Harness
from tests.integrations import site

pytestmark = pytest.mark.usefixtures("project")


@pytest.fixture
def backends() -> Any:
    """Makes a backend of these OPTIONS."""
    from tenure.integrations.django import TenureBackend

    return lambda **options: TenureBackend("other", {"OPTIONS": options})


def messages(backend: Any) -> list[str]:
    """The ids of a backend's checks."""
    return [each.id for each in backend.check()]


def test_a_database_that_tenure_cannot_use_is_reported_and_refused(backends: Any) -> None:
    connections.settings["lite"] = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    connections.configure_settings(connections.settings)
    try:
        (found,) = backends(database="lite").check()
        assert (found.id, "is sqlite" in found.msg) == ("tenure.E001", True)
        from tests.integrations.tasks import add

        with pytest.raises(BadInput, match="is sqlite"):
            backends(database="lite").enqueue(add, (1,), {})
    finally:
        del connections.settings["lite"]
    assert messages(backends(database="nowhere")) == ["tenure.E001"]
    assert messages(backends()) == []


def test_options_that_are_none_are_refused(backends: Any) -> None:
    from tests.integrations.tasks import add

    with pytest.raises(BadInput, match="queue_name="):
        backends(queue="mail")
    with pytest.raises(BadInput, match="has no option 'max_tries'"):
        backends(name="other-app", max_tries=3).validate_task(add)


def test_a_delay_in_the_options_holds_where_the_task_names_no_time(backends: Any, db: Harness) -> None:
    from tests.integrations.tasks import add

    backend, later = backends(name="slow", delay=60), timezone.now() + timedelta(hours=1)
    waiting = backend.enqueue(add, (1,), {})
    named = backend.enqueue(add.using(run_after=later), (2,), {})
    due = "select extract(epoch from due_at - created_at)::integer from tenure.job where id = %s"
    assert db.value(due, int(waiting.id)) == 60
    assert db.row(int(named.id))["due_at"] == later


def test_without_the_app_installed_a_check_says_what_is_missing(backends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from django.apps import apps

    with monkeypatch.context() as patched:
        patched.setattr(apps, "app_configs", {name: one for name, one in apps.app_configs.items() if name != "tenure"})
        assert messages(backends()) == ["tenure.W001"]


def test_a_missing_schema_is_reported_and_migrate_makes_it(
    empty_dsn: str, dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.integrations.tasks import add

    connections["default"].close()
    site.use(empty_dsn)
    with Harness(empty_dsn) as db:
        with pytest.raises(SchemaMissing):
            add.enqueue(1)
        call_command("check", "--database", "default")
        assert "tenure.W002" in capsys.readouterr().err
        settings.TASKS["default"]["OPTIONS"]["migrate"] = False
        settings.TASKS["once"]["OPTIONS"]["migrate"] = settings.TASKS["killable"]["OPTIONS"]["migrate"] = False
        try:
            forget_backends()
            call_command("migrate", verbosity=0)
            assert db.value("select to_regnamespace('tenure')") is None
        finally:
            for alias in settings.TASKS:
                del settings.TASKS[alias]["OPTIONS"]["migrate"]
            forget_backends()
        call_command("migrate", verbosity=0)
        call_command("check", "--database", "default")
        assert "tenure.W002" not in capsys.readouterr().err
        assert add.enqueue(1).id == str(db.value("select id from tenure.job"))
        connections["default"].close()


def forget_backends() -> None:
    """Make the backends anew from the settings."""
    for alias in task_backends:
        if hasattr(task_backends._connections, alias):
            delattr(task_backends._connections, alias)


def test_an_app_uses_the_database_that_the_settings_name_now(dsn: str, db: Harness) -> None:
    from tenure.integrations.django import app, database_url
    from tests.integrations.tasks import plain

    ticket = plain.enqueue_sync(1)
    assert db.row(ticket.id)["type"] == "plain"
    assert app().application == "tests.integrations.settings" or app().application == "django"
    with testing.use_database(dsn):
        assert app().database_url() == dsn
    assert app().database_url() == database_url()


def test_the_command_leaves_the_process_as_it_was(dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    import os
    import signal
    import sys

    before = (list(sys.argv), dict(os.environ), signal.getsignal(signal.SIGTERM))
    call_command("tenure", "migrate")
    assert "nothing to do" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        call_command("tenure", "jobs", "show", "77")
    assert ended.value.code == 1
    assert (list(sys.argv), dict(os.environ), signal.getsignal(signal.SIGTERM)) == before
