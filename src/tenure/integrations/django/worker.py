"""The Apps of a Django project for the command line: `tenure worker tenure.integrations.django.worker:default`.

`manage.py tenure worker` runs this command. The name is that of a backend in TASKS. DJANGO_SETTINGS_MODULE must be set.
"""

from __future__ import annotations

from tenure.integrations.django.project import ProjectApp, app, load

load()


def __getattr__(name: str) -> ProjectApp:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return app(name)
