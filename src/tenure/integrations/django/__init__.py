"""Tenure in a Django project: `"tenure.integrations.django"` in INSTALLED_APPS, and a backend of the tasks framework.

    TASKS = {"default": {"BACKEND": "tenure.integrations.django.TenureBackend", "OPTIONS": {"max_attempts": 3}}}

    @task                         the framework's own decorator, from django.tasks or django_tasks
    @app().task                   Tenure's decorator; both kinds run in the same worker
    manage.py tenure worker       that worker; `manage.py tenure …` is the command `tenure` on the project's database
    manage.py migrate             creates and upgrades Tenure's schema too

Jobs are enqueued and read on Django's own connection, inside `transaction.atomic` where there is one.
"""

from tenure.integrations.django.backend import TenureBackend
from tenure.integrations.django.connection import database_url
from tenure.integrations.django.project import app

__all__ = ["TenureBackend", "app", "database_url"]
