"""`tenure openapi` as a person runs it: the document on stdout, with no database anywhere near."""

from __future__ import annotations

import json
from pathlib import Path

from tenure.http.openapi import openapi_document
from tenure.http.route_table import ROUTES
from tests.cli.forked import tenure


def test_the_document_is_printed_without_a_database_or_a_dispatcher(tmp_path: Path) -> None:
    done = tenure("openapi", cwd=tmp_path, DATABASE_URL="postgresql://nobody@127.0.0.1:1/none")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == openapi_document(ROUTES, "http://127.0.0.1:8420")
    assert list(tmp_path.iterdir()) == [], "an embedded PostgreSQL was made"


def test_the_document_names_the_dispatcher_that_it_is_for(tmp_path: Path) -> None:
    done = tenure("openapi", "--server", "https://jobs.example", cwd=tmp_path)
    (server,) = json.loads(done.stdout)["servers"]
    assert server["url"] == "https://jobs.example"
