"""Settings, from DATABASE_URL: postgresql://user:password@host:port/name."""

import os

from psycopg.conninfo import conninfo_to_dict

_database = conninfo_to_dict(os.environ["DATABASE_URL"])

SECRET_KEY = os.environ.get("SECRET_KEY", "only for this example")
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "project.urls"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django_tasks",  # Django 5: the backport of the tasks framework; Django 6 has it as django.tasks
    "tenure.integrations.django",
    "shop",
]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _database.pop("dbname"),
        "USER": _database.pop("user", ""),
        "PASSWORD": _database.pop("password", ""),
        "HOST": _database.pop("host", ""),
        "PORT": _database.pop("port", ""),
        "OPTIONS": _database,
    }
}

TASKS = {
    "default": {
        "BACKEND": "tenure.integrations.django.TenureBackend",
        "QUEUES": ["mail", "default"],
        "OPTIONS": {"max_attempts": 3},
    }
}
