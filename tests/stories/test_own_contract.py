"""The guide to a contract of one's own, followed from its first line on: files, commands and snippets in order."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from tenure.embedded import Cluster
from tests.stories.test_documents import _FILE, ROOT, python, run

_BLOCK = re.compile(r"```(python)?\n(.*?)```", re.DOTALL)


def steps() -> Iterator[tuple[str, str]]:
    """What the page asks for, in order: a file, a program, or a command with the lines that it shows."""
    for kind, text in _BLOCK.findall((ROOT / "docs" / "own-contract.md").read_text(encoding="utf-8")):
        if kind == "python":
            yield ("file" if _FILE.match(text) else "program"), text
        else:
            yield from (("command", command) for command in text.split("$ tenure ")[1:])


def shows(said: str, line: str) -> bool:
    """Whether a line of the output is this one, where … stands for anything."""
    wanted = ".*".join(re.escape(part) for part in " ".join(line.split()).split("…"))
    return any(re.fullmatch(wanted, " ".join(each.split())) for each in said.splitlines())


def test_the_guide_leads_from_an_empty_file_to_a_verified_contract_in_use(tmp_path: Path) -> None:
    done = []
    with Cluster(tmp_path / ".tenure"):  # started once for all of them
        for kind, text in steps():
            if kind == "file":
                (tmp_path / _FILE.match(text)[1]).write_text(text, encoding="utf-8")  # type: ignore[index]
            elif kind == "program":
                ran = run(text, "own-contract", tmp_path)
                assert ran.returncode == 0, f"{text}\n{ran.stderr}"
            else:
                command, *lines = text.rstrip().splitlines()
                ran = python(tmp_path, "-m", "tenure", *shlex.split(command))
                said = ran.stdout + ran.stderr
                assert ran.returncode == 0, f"{command}\n{said}"
                assert [line for line in lines if not shows(said, line)] == [], f"{command}\n{said}"
                done.append(" ".join(command.split()[:2]))
    assert {"migrate --app", "jobs transition", "jobs why", "verify", "contracts verify", "contracts diff"} <= set(done)
    assert (ROOT / "docs" / "own-contract.md").read_text().split("PURCHASE = Contract(")[1].split("\n)")[0].count(
        "\n"
    ) < 30
