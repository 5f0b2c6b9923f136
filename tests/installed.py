"""An environment in which Tenure's plugin is installed, as pip does it, also where only its sources are on the path."""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points
from pathlib import Path


def with_plugin(directory: Path) -> dict[str, str]:
    """Variables for Python processes in which pytest finds the plugin; what is needed is written to this directory."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("DATABASE_URL", "PYTEST_"))}
    if any(point.name == "tenure" for point in entry_points(group="pytest11")):
        return clean
    about = directory / "tenure-0.dist-info"
    about.mkdir(exist_ok=True, parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tenure\nVersion: 0\n", encoding="utf-8")
    (about / "entry_points.txt").write_text("[pytest11]\ntenure = tenure.pytest_plugin\n", encoding="utf-8")
    return {**clean, "PYTHONPATH": os.pathsep.join([str(directory), *filter(None, sys.path)])}
