"""Everything a user meets is documented: commands and their options, settings, error codes, contracts, views."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import get_args

import tenure.contracts
import tenure.embedded
from tenure.cli.command_table import COMMANDS, GROUPS, load_command, load_member
from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import ROLES, TRIGGERS, Contract, Due
from tenure.contracts.diagram import to_svg
from tenure.contracts.view_fields import FIELDS
from tenure.errors import TenureError
from tenure.postgres.store import Store

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def page(name: str) -> str:
    return (REFERENCE / f"{name}.md").read_text(encoding="utf-8")


def all_errors(kind: type[TenureError]) -> set[type[TenureError]]:
    return {kind}.union(*(all_errors(child) for child in kind.__subclasses__()))


def missing(words: list[str], text: str) -> list[str]:
    return [word for word in words if f"`{word}`" not in text]


def commands() -> dict[str, list[str]]:
    """Each command of the command line, those of a group as `group command`, with its long options."""
    found = {name: load_command(name) for name in COMMANDS}
    for group in GROUPS:
        found |= {f"{group} {name}": load_member(group, name) for name in load_command(group).commands}
    return {
        name: [option for part in command.params for option in part.opts if option.startswith("--")]
        for name, command in found.items()
    }


def test_every_command_and_option_is_documented() -> None:
    found = commands()
    assert {"migrate", "demo", "contracts list"} <= set(found)
    assert missing([f"tenure {name}" for name in found], page("commands")) == []
    for name, options in found.items():
        section = page("commands").split(f"## `tenure {name}`")[1].split("\n## ")[0]
        assert missing(options, section) == [], f"options of tenure {name}"


def test_every_error_is_documented_under_its_code_and_class() -> None:
    errors = {error for error in all_errors(TenureError) if error.__module__.startswith("tenure.")}
    assert tenure.embedded.NoBinaries in errors
    text = page("errors")
    assert missing(sorted(error.code for error in errors), text) == []
    assert missing(sorted(error.__name__ for error in errors), text) == []
    codes = [error.code for error in errors]
    assert len(codes) == len(set(codes)), "two errors share a code"


def test_every_setting_is_documented() -> None:
    numbers = {f"TENURE_<CONTRACT>_{number.upper()}" for contract in BUILT_IN.values() for number in contract.numbers()}
    knobs = {knob for contract in BUILT_IN.values() for knob in contract.knobs}
    source = Path(tenure.embedded.__file__).parents[1]
    read = {
        name
        for path in source.rglob("*.py")
        for name in re.findall(r"""["'](TENURE_[A-Z_]+|DATABASE_URL)["']""", path.read_text())
    }
    assert read >= {"DATABASE_URL", "TENURE_MAX_PAYLOAD_BYTES"}
    assert missing(sorted(numbers | knobs | read), page("settings")) == []


def test_every_contract_and_view_is_documented() -> None:
    schema, contracts = page("schema"), (REFERENCE.parent / "explanation" / "contracts.md").read_text(encoding="utf-8")
    assert missing(list(BUILT_IN), contracts) == []
    for contract in BUILT_IN.values():
        (row,) = [line for line in schema.splitlines() if line.startswith(f"| `tenure_{contract.name}`")]
        assert missing([view.name for view in contract.views], row) == []


def test_every_part_of_a_declaration_is_documented() -> None:
    text = page("contracts")
    parts = {name: getattr(tenure.contracts, name) for name in tenure.contracts.__all__}
    assert missing([name for name in parts if f"`{name}(" not in text], text) == []
    classes = [part for part in parts.values() if isinstance(part, type)]
    names = {field.name for part in classes for field in dataclasses.fields(part)}
    assert missing(sorted(names), text) == []
    assert missing([*TRIGGERS, *ROLES, *get_args(Due)], text) == []
    contract = text.split("## Contract")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", contract, re.MULTILINE) == [
        field.name for field in dataclasses.fields(Contract)
    ]


def test_every_field_of_a_view_is_documented() -> None:
    jobs, events, letters, outbox = page("view-fields").split("\n## ")[1:]
    sections = {"jobs": jobs, "finished": jobs, "events": events, "letters": letters, "outbox": outbox}
    documented = {rows: set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) for rows, text in sections.items()}
    assert documented == FIELDS


def test_every_verb_of_the_store_is_documented() -> None:
    verbs = [name for name in dir(Store) if not name.startswith("_")]
    assert "claim_by_id" in verbs
    text = page("store")
    assert [name for name in verbs if f"`{name}(" not in text and f"`Store.{name}(" not in text] == []


def test_no_document_is_empty() -> None:
    for document in [*REFERENCE.parent.glob("**/*.md")]:
        assert len(document.read_text(encoding="utf-8").splitlines()) > 5, f"{document} says nothing"


def test_messages_name_only_commands_that_exist() -> None:
    source = Path(tenure.embedded.__file__).parents[1]
    named = {
        word for path in source.rglob("*.py") for word in re.findall(r"Next: (?:run )?tenure (\w+)", path.read_text())
    }
    assert named >= {"migrate"}
    assert named <= {name.split()[0] for name in commands()}


def test_the_pictures_are_drawn_from_the_declarations_of_today() -> None:
    for contract in BUILT_IN.values():
        drawn = (REFERENCE.parent / "pictures" / f"{contract.name}.svg").read_text(encoding="utf-8")
        assert drawn.strip() == to_svg(contract).strip(), f"tenure contracts diagram {contract.name} --format svg"


def test_the_check_finds_what_is_missing() -> None:
    assert missing(["--there", "--not-there"], "| `--there` | yes |") == ["--not-there"]


def test_every_link_between_documents_leads_somewhere() -> None:
    root = REFERENCE.parents[1]
    for document in [root / "README.md", *root.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
