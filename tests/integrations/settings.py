"""Settings of Django for the tests, as a module for processes."""

from __future__ import annotations

import os
from typing import Any

from tests.integrations.site import APPS, TASKS_SETTING, database

SECRET_KEY = "not secret"
USE_TZ = True
TIME_ZONE = "UTC"
INSTALLED_APPS = APPS
DATABASES: dict[str, Any] = {"default": database(os.environ["DATABASE_URL"])}
TASKS = TASKS_SETTING
