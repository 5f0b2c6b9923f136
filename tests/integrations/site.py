"""A Django project in this process: its settings, on the database of a test."""

from __future__ import annotations

import asyncio
from typing import Any

import django
from django.conf import settings
from django.db import connections
from psycopg.conninfo import conninfo_to_dict

BACKEND = "tenure.integrations.django.TenureBackend"
#: No waiting between tries, and leases that no test outlives.
QUICK = {"backoff_base": 0.001, "backoff_cap": 0.001, "lease": 600}
APPS = ["django_tasks", "tenure.integrations.django"]
TASKS_SETTING: dict[str, Any] = {
    "default": {
        "BACKEND": BACKEND,
        "QUEUES": ["urgent", "default"],
        "OPTIONS": {"modules": ["tests.integrations.tasks"], "max_attempts": 3, **QUICK},
    },
    "once": {"BACKEND": BACKEND, "OPTIONS": {"max_attempts": 1, **QUICK}},
    "killable": {"BACKEND": BACKEND, "OPTIONS": {"isolation": "process", **QUICK}},
}


def database(url: str) -> dict[str, Any]:
    """An entry of DATABASES."""
    parts: dict[str, Any] = dict(conninfo_to_dict(url))
    names = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
    return {"ENGINE": "django.db.backends.postgresql"} | {
        upper: parts[lower] for lower, upper in names.items() if lower in parts
    }


def set_up() -> None:
    """Configure Django in this process, where other tests may have done a part of it."""
    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True)
    settings.LOGGING_CONFIG = None
    settings.TIME_ZONE = "UTC"
    settings.INSTALLED_APPS = APPS
    settings.TASKS = TASKS_SETTING
    django.setup()


def use(url: str) -> None:
    """Let `default` be this database, also for threads that have used another one: as Django's test runner does it."""
    connections.settings.setdefault("default", {}).update(database(url))
    connections.configure_settings(connections.settings)


def work(**options: Any) -> None:
    """Run the jobs that are due, and those that they enqueue."""
    from tenure.integrations.django import app

    async def run() -> None:
        async with app() as own:
            await own.worker(**{"poll": 0.05, **options}).run(until_idle=True)

    asyncio.run(run())
