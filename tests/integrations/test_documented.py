"""What users of the integrations import, set and meet stands in docs/integrations.md."""

from __future__ import annotations

import dataclasses
import re

from tenure.integrations import fastapi
from tests.architecture.test_library_documented import SOURCE, task_options, untold
from tests.integrations import site

ROOT = SOURCE.parents[1]
PAGE = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")


def test_public_names_are_documented() -> None:
    site.set_up()
    from tenure.integrations import django

    own = [name for name, each in vars(fastapi).items() if getattr(each, "__module__", "") == fastapi.__name__]
    public = [name for name in own if callable(getattr(fastapi, name)) and not name.startswith("_") and len(name) > 1]
    assert public == ["lifespan", "Enqueue", "EnqueueSync"]
    assert untold([*public, *django.__all__], PAGE) == []


def test_options_of_the_backend_are_documented() -> None:
    site.set_up()
    from tenure.integrations.django.project import BackendOptions

    own = {field.name for field in dataclasses.fields(BackendOptions)} - {"task"}
    passed = set(task_options()) - {"name", "queue", "priority"}
    table = PAGE.split("| OPTIONS |")[1].split("\n\n")[0]
    assert {"database", "max_attempts"} <= own | passed
    assert untold(own | passed, table) == []


def test_checks_are_documented_and_no_other() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (SOURCE / "integrations").rglob("*.py"))
    ids = set(re.findall(r'id="(tenure\.[EW]\d+)"', code))
    assert len(ids) == 4
    assert set(re.findall(r"^\| `(tenure\.[EW]\d+)` \|", PAGE, flags=re.MULTILINE)) == ids
