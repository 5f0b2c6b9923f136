"""The example of the page about flows runs, and its drawing and its picture are those that the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.cli.forked import tenure
from tests.harness import Harness
from tests.stories.test_documents import ROOT, laid_out

PAGE = ROOT / "docs" / "flows.md"
PICTURE = ROOT / "docs" / "pictures" / "flow.svg"
#: When each node started and ended in the picture, in seconds: how long it took in this test is up to the machine.
TIMES = {
    "extract": (0.5, 9.5), "exchange_rate": (0.5, 4.5), "transform": (9.6, 35.6), "transform[0]": (9.6, 18.2),
    "transform[1]": (18.3, 26.9), "transform[2]": (27.0, 35.6), "load": (36.7, 44.7),
}  # fmt: skip


def test_the_example_of_the_page_runs_and_is_drawn_as_it_shows(dsn: str, db: Harness, tmp_path: Path) -> None:
    (program,), _ = laid_out("docs/flows.md", tmp_path)
    done = subprocess.run(
        [sys.executable, program.name], cwd=tmp_path, capture_output=True, text=True, timeout=100,
        env={**os.environ, "DATABASE_URL": dsn},
    )  # fmt: skip
    page = PAGE.read_text(encoding="utf-8")
    assert done.stdout, done.stderr
    assert f"it prints `{done.stdout.strip()}`" in page
    assert {row["state"] for row in db.sql("select state from tenure.flow_node where name <> 'alarm'")} == {"succeeded"}
    db.sql("update tenure.flow set created_at = '2030-01-02T03:00Z', ended_at = '2030-01-02T03:00:45Z'")
    for name, (start, end) in TIMES.items():
        assert db.sql(
            "update tenure.flow_node set started_at = '2030-01-02T03:00Z'::timestamptz + %s * interval '1 s', "
            "finished_at = '2030-01-02T03:00Z'::timestamptz + %s * interval '1 s' where name = %s returning id",
            start, end, name,
        )  # fmt: skip
    shown = tenure("flows", "show", "1", "--svg", "flow.svg", cwd=tmp_path, DATABASE_URL=dsn)
    assert (shown.returncode, shown.stderr) == (0, "wrote flow.svg\n")
    (drawing,) = re.findall(r"\$ tenure flows show 1\n(.*?)\n\$", page, re.DOTALL)
    assert shown.stdout.rstrip() == drawing
    drawn = tmp_path / "flow.svg"
    same = drawn.read_text(encoding="utf-8") == PICTURE.read_text(encoding="utf-8")
    assert same, f"the picture of the page is of another example, or was drawn otherwise: cp {drawn} {PICTURE}"
