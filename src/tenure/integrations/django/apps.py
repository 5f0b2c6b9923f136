"""The app to install: its command `manage.py tenure`, its checks, and Tenure's schema in `manage.py migrate`."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import post_migrate


class TenureConfig(AppConfig):  # type: ignore[misc]
    """Tenure in INSTALLED_APPS."""

    name = "tenure.integrations.django"
    label = "tenure"
    verbose_name = "Tenure"

    def ready(self) -> None:
        """Register what Django calls."""
        from tenure.integrations.django.schema import check_schema, migrate_schema

        checks.register(checks.Tags.database)(check_schema)
        post_migrate.connect(migrate_schema, sender=self, dispatch_uid="tenure.migrate_schema")
