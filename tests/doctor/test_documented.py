"""Every finding is documented with its severity, and staged by a test."""

from __future__ import annotations

import re
from pathlib import Path

from tenure.jobs.finding import FINDINGS

ROOT = Path(__file__).resolve().parents[2]


def test_the_reference_lists_every_finding_as_the_catalogue_has_it() -> None:
    page = (ROOT / "docs" / "reference" / "doctor.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (critical|warning|note) \| (.*) \|$", page, re.MULTILINE)
    assert {code: (severity, text) for code, severity, text in rows} == dict(FINDINGS)
    assert len(FINDINGS) >= 25


def test_every_finding_is_staged() -> None:
    tests = [*Path(__file__).parent.glob("test_*.py"), ROOT / "tests" / "postgres" / "test_pooler.py"]
    text = "".join(path.read_text(encoding="utf-8") for path in tests if path != Path(__file__))
    assert [code for code in FINDINGS if f'"{code}"' not in text] == []
