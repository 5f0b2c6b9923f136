"""What CI runs is what everybody runs: `./dev test`, with nothing left out."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_ci_runs_the_command_of_the_readme_and_lets_nothing_be_left_out() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert lines[-1] == "exec ./dev test"
    assert "export TENURE_REQUIRE=1" in lines
    assert "./dev test" in (ROOT / "README.md").read_text()
