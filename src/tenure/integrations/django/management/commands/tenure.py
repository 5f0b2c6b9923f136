"""`manage.py tenure …`: the command `tenure`, on the database and with the tasks of this project."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from tenure.errors import TenureError
from tenure.integrations.django.connection import database_url
from tenure.integrations.django.project import app


class Command(BaseCommand):  # type: ignore[misc]
    """Runs a command of Tenure."""

    help = (
        "Runs a command of Tenure on this project's database: `manage.py tenure worker` runs the tasks, "
        "`manage.py tenure --backend ALIAS worker` those of another backend, `manage.py tenure help` lists commands."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Everything behind the first word belongs to Tenure's command."""
        parser.add_argument(
            "--backend", default="default", metavar="ALIAS", help="A backend of TASKS; default: default."
        )
        parser.add_argument("command", help="worker, migrate, upkeep, jobs, queues, …")
        parser.add_argument("arguments", nargs=argparse.REMAINDER, help="As in `tenure COMMAND --help`.")

    def handle(self, *, backend: str, command: str, arguments: list[str], **_: Any) -> None:
        """Run it; exits with its exit code."""
        from tenure.cli import main

        try:
            url = database_url(app(backend).database)
        except TenureError as error:
            raise CommandError(str(error)) from error
        if command == "help":
            command = "--help"
        words = [command, *arguments]
        if command == "worker":
            words.insert(1, f"tenure.integrations.django.worker:{backend}")
        with _as_process(words, url):
            code = main()
        if code:
            sys.exit(code)


@contextmanager
def _as_process(words: list[str], url: str) -> Iterator[None]:
    """Let this process look as if it was started as `tenure WORDS`: worker processes are started in the same way."""
    words_before, environment = sys.argv, dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    sys.argv = ["tenure", *words]
    os.environ["DATABASE_URL"] = url
    os.environ.pop("TENURE_DISPATCHER_URL", None)
    # Where the project is, also for programs of other Python versions: without the libraries of this one.
    libraries = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path and not path.startswith(libraries))
    try:
        yield
    finally:
        sys.argv = words_before
        os.environ.clear()
        os.environ.update(environment)
        for number, handler in handlers.items():
            signal.signal(number, handler)
