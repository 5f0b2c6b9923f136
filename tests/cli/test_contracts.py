"""`tenure contracts` as a person runs it: what is known, told, drawn and compared, with and without a database."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import Contract, Event
from tenure.contracts.diagram import to_mermaid, to_svg
from tenure.contracts.notation import path, states
from tenure.postgres.migrate import migrate
from tests.cli.forked import tenure

STANDARD, PHASE27 = BUILT_IN["standard"], BUILT_IN["phase27"]

_STATES = states(todo="ready", doing="active", done="done", dropped="done")
CHORES = replace(
    PHASE27,
    name="chores",
    title="Household chores",
    states=_STATES,
    initial="todo",
    paths=(
        path("claim", "todo > doing"),
        path("reclaim", "doing > doing"),
        path("succeed", "doing > done"),
        path("retry", "doing > todo", due="backoff"),
        path("exhaust", "doing > dropped"),
        path("expire_at_cap", "doing > dropped"),
    ),
)
#: What a next version may do: one more event, and another lease.
NEXT = replace(
    STANDARD, version="2", events=(*STANDARD.events, Event("noticed", ("claim",), {"reason": "reason"}))
).with_numbers({"lease_ms": 45_000})


def said(*arguments: str, cwd: Path, **environ: str) -> Any:
    """The JSON that a command has printed; it went well."""
    done = tenure("contracts", *arguments, "--json", cwd=cwd, **environ)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def refused(*arguments: str, cwd: Path, **environ: str) -> str:
    """The message of a command that was refused and printed nothing else."""
    done = tenure("contracts", *arguments, cwd=cwd, **environ)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


def kept(place: Path, contract: Contract, change: Callable[[dict[str, Any]], None] = lambda _: None) -> str:
    """The path of a file with the contract's description, changed or not."""
    declared = contract.describe()
    change(declared)
    place.write_text(json.dumps(declared), encoding="utf-8")
    return str(place)


def test_list_without_a_database_shows_the_built_in_ones_and_starts_nothing(tmp_path: Path) -> None:
    listed = said("list", cwd=tmp_path)["contracts"]
    assert [one["name"] for one in listed] == list(BUILT_IN)
    for one, contract in zip(listed, BUILT_IN.values(), strict=True):
        assert one == {
            "name": contract.name, "version": contract.version, "title": contract.title,
            "states": list(contract.states), "built_in": True, "registered_at": None,
        }  # fmt: skip
    text = tenure("contracts", "list", cwd=tmp_path)
    assert text.returncode == 0
    assert "gate_b2 2026.02.21-r3 (built in)\n" in text.stdout
    assert list(tmp_path.iterdir()) == []


def test_list_with_a_database_also_shows_every_registered_version(dsn: str, tmp_path: Path) -> None:
    migrate(dsn, {**BUILT_IN, "standard": NEXT, "chores": CHORES})
    listed = {(one["name"], one["version"]): one for one in said("list", cwd=tmp_path, DATABASE_URL=dsn)["contracts"]}
    assert {name for name, _ in listed} == {*BUILT_IN, "chores"}
    assert all(one["registered_at"].endswith("Z") for one in listed.values())
    assert (listed["standard", "1"]["built_in"], listed["standard", "2"]["built_in"]) == (True, False)
    assert listed["chores", "1"]["states"] == list(CHORES.states)  # in the order of the declaration
    text = tenure("contracts", "list", "--database-url", dsn, cwd=tmp_path)
    assert "chores 1 (registered 20" in text.stdout
    assert "standard 1 (built in, registered 20" in text.stdout


def test_list_of_a_database_without_schema_says_what_to_do(empty_dsn: str, tmp_path: Path) -> None:
    message = refused("list", "--database-url", empty_dsn, cwd=tmp_path)
    assert message.startswith("E-SCHEMA-MISSING: ")
    assert "Next: tenure migrate" in message


@pytest.mark.parametrize("name", BUILT_IN)
def test_show_tells_the_whole_contract(name: str, tmp_path: Path) -> None:
    contract = BUILT_IN[name]
    done = tenure("contracts", "show", name, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    for state, roles in contract.states.items():
        assert [state, *" or ".join(roles).split()] in [line[: 2 * len(roles)] for line in lines]
    wanted = {
        *contract.triggers(), *contract.knobs, *contract.cancel_modes, *contract.dead_letters.reasons,
        contract.counter.name, contract.budget.name, contract.invalid_transition,
        *(event.name for event in contract.events), *(key for event in contract.events for key in event.keys),
        *(f"tenure_{name}.{view.name}" for view in contract.views),
        *(column for view in contract.views for column in view.columns),
        *(path.letter for path in contract.paths if path.letter), *contract.retryable.classes,
    }  # fmt: skip
    told = {word.strip(",:;()[]") for line in lines for word in line}
    assert wanted <= told


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("phase27", "1.5 s, 3 s, 6 s, 12 s; factor 2, cap 1 min, times 0.7 to 1.3"),
        ("gate_b2", "1 s, 2 s, 4 s; factor 2, cap 30 s, plus 0 to 300 ms"),
        ("simple", "RUNNING → FAILED:settling → PENDING"),
        ("reliability", "a beat every 15 s (10 s to 30 s); 2 missed beats make an orphan"),
    ],
)
def test_show_says_how_it_goes(name: str, line: str, tmp_path: Path) -> None:
    assert line in tenure("contracts", "show", name, cwd=tmp_path).stdout


def test_show_finds_a_registered_version_and_without_one_the_newest(dsn: str, tmp_path: Path) -> None:
    migrate(dsn, {**BUILT_IN, "standard": NEXT})
    assert said("show", "standard", cwd=tmp_path, DATABASE_URL=dsn) == NEXT.describe()
    assert said("show", "standard", "--version", "1", cwd=tmp_path, DATABASE_URL=dsn) == STANDARD.describe()
    assert said("show", "standard@1", "--database-url", dsn, cwd=tmp_path) == STANDARD.describe()
    assert said("show", "standard", cwd=tmp_path) == STANDARD.describe()


def test_a_file_made_by_show_is_the_same_contract_and_asks_no_database(tmp_path: Path) -> None:
    made = tenure("contracts", "show", "reliability", "--json", cwd=tmp_path).stdout
    (tmp_path / "kept.json").write_text(made, encoding="utf-8")
    nowhere = f"host={tmp_path} dbname=nowhere"
    assert said("show", "kept.json", cwd=tmp_path, DATABASE_URL=nowhere) == BUILT_IN["reliability"].describe()
    same = tenure("contracts", "diff", "reliability", "kept.json", cwd=tmp_path)
    assert (same.returncode, same.stdout) == (0, "reliability 1 → reliability 1: nothing changes\n")


def test_diagram_prints_mermaid_or_svg(dsn: str, tmp_path: Path) -> None:
    migrate(dsn, {**BUILT_IN, "chores": CHORES})
    assert tenure("contracts", "diagram", "standard", cwd=tmp_path).stdout == to_mermaid(STANDARD)
    assert tenure("contracts", "diagram", "standard", "--format", "svg", cwd=tmp_path).stdout == to_svg(STANDARD)
    told = said("diagram", "chores", "--version", "1", "--format", "svg", cwd=tmp_path, DATABASE_URL=dsn)
    assert told == {"name": "chores", "version": "1", "format": "svg", "diagram": to_svg(CHORES)}
    assert tenure("contracts", "diagram", "standard", "--format", "png", cwd=tmp_path).returncode == 2


def test_diff_of_an_additive_change_says_what_is_new_and_exits_with_zero(dsn: str, tmp_path: Path) -> None:
    migrate(dsn, {**BUILT_IN, "standard": NEXT})
    told = said("diff", "standard@1", "standard", cwd=tmp_path, DATABASE_URL=dsn)
    assert told == {
        "from": {"name": "standard", "version": "1"}, "to": {"name": "standard", "version": "2"}, "additive": True,
        "takes_away": [], "adds": ["event noticed on claim", "event noticed.reason on claim"],
        "alters": ["lease.default_ms is 45000 instead of 30000"],
    }  # fmt: skip


def test_diff_of_a_change_that_takes_away_exits_with_one(tmp_path: Path) -> None:
    less = kept(tmp_path / "less.json", NEXT, lambda declared: declared.update(cancel_modes=["soft"]))
    done = tenure("contracts", "diff", "standard", less, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines() == [
        "standard 1 → standard 2: not additive",
        "takes away: cancel mode hard is gone",
        "adds: event noticed on claim",
        "adds: event noticed.reason on claim",
        "alters: lease.default_ms is 45000 instead of 30000",
    ]
    told = tenure("contracts", "diff", "standard", less, "--json", cwd=tmp_path)
    assert (told.returncode, json.loads(told.stdout)["takes_away"]) == (1, ["cancel mode hard is gone"])
    back = tenure("contracts", "diff", less, "standard", cwd=tmp_path)
    assert "adds: cancel mode hard" in back.stdout


def test_diff_names_new_states_paths_reasons_and_columns(tmp_path: Path) -> None:
    done = tenure("contracts", "diff", "phase27", "reliability", "--json", cwd=tmp_path)
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert {
        "state assigned (leased)", "path start from assigned", "path exhaust [failed] from running",
        "dead letter reason timeout", "column jobs.job_id", "event job_claimed.reason on claim",
    } <= set(told["adds"])  # fmt: skip
    assert 'retryable.rule is "class" instead of "any"' in told["alters"]


def test_an_unknown_contract_is_refused_with_what_is_known(tmp_path: Path) -> None:
    for arguments in (("show", "standart"), ("diagram", "standart"), ("diff", "standard", "standart")):
        message = refused(*arguments, cwd=tmp_path)
        assert message.startswith(
            "E-UNKNOWN-CONTRACT: no contract 'standart' is known; known are: standard@1, phase27@1"
        )
    assert "'standard@9'" in refused("show", "standard", "--version", "9", cwd=tmp_path)


def test_a_contract_of_a_newer_release_is_listed_and_refused_by_name(dsn: str, tmp_path: Path) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "insert into tenure.contract (name, version, digest, declaration) values ('later', '1', 'x', %s)",
            (json.dumps({"title": "Of tomorrow", "moods": ["happy"]}),),
        )
    listed = said("list", cwd=tmp_path, DATABASE_URL=dsn)["contracts"]
    assert [one["title"] for one in listed if one["name"] == "later"] == ["Of tomorrow"]
    message = refused("show", "later", cwd=tmp_path, DATABASE_URL=dsn)
    assert message.startswith("E-UNKNOWN-CONTRACT: contract later 1 is registered, but this release cannot read it")


@pytest.mark.parametrize("text", ["", "{", "[1]", '"text"', "{}", '{"lease": 1}', "\x00", "[" * 100_000])
def test_a_file_that_is_no_contract_is_bad_input(text: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(text)
    assert refused("show", "bad.json", cwd=tmp_path).startswith("E-BAD-INPUT: the file bad.json is no contract's")


def test_a_file_that_cannot_be_read_is_bad_input(tmp_path: Path) -> None:
    for name in ("missing.json", str(tmp_path), "Standard"):
        message = refused("diff", "standard", name, cwd=tmp_path)
        assert message.startswith(f"E-BAD-INPUT: {name!r} is no contract's name, and as a file it cannot be read: ")


def test_a_file_with_a_contract_that_contradicts_itself_says_how(tmp_path: Path) -> None:
    place = kept(tmp_path / "unsound.json", STANDARD, lambda declared: declared.update(initial="nowhere"))
    message = refused("show", place, cwd=tmp_path)
    assert message.startswith("E-UNSOUND: ")
    assert "initial state nowhere is not declared" in message


ROOT = str(Path(__file__).parents[2])
OWN_APP = """
from tenure import App
from tests.decisions import PURCHASE, REVIEW

app = App(contracts=[PURCHASE])
both = App(contracts=[PURCHASE, REVIEW])
none = App()
"""


def test_every_command_takes_the_contracts_of_an_application(tmp_path: Path) -> None:
    (tmp_path / "purchases.py").write_text(OWN_APP)
    listed = tenure("contracts", "list", "purchases:both", cwd=tmp_path, PYTHONPATH=ROOT)
    assert "purchase 1 (not registered)" in listed.stdout
    assert "review 1 (not registered)" in listed.stdout
    assert tenure("contracts", "show", "purchases:app", cwd=tmp_path, PYTHONPATH=ROOT).stdout.startswith(
        "purchase 1: A purchase that a person approves"
    )
    assert "approve" in tenure("contracts", "diagram", "purchases:app", cwd=tmp_path, PYTHONPATH=ROOT).stdout
    verified = tenure("contracts", "verify", "purchases:both", cwd=tmp_path, PYTHONPATH=ROOT)
    assert verified.returncode == 0, verified.stderr
    assert [line.split(":")[0] for line in verified.stdout.splitlines() if not line.startswith(" ")] == [
        "purchase", "review",
    ]  # fmt: skip
    several = tenure("contracts", "show", "purchases:both", cwd=tmp_path, PYTHONPATH=ROOT)
    assert several.returncode == 1
    assert "has several contracts: purchase, review. Next: name one of them" in several.stderr
    assert (
        "declares no contract of its own"
        in tenure("contracts", "show", "purchases:none", cwd=tmp_path, PYTHONPATH=ROOT).stderr
    )


def test_migrate_registers_the_contracts_that_it_is_given_each_once(tmp_path: Path, dsn: str) -> None:
    (tmp_path / "purchases.py").write_text(OWN_APP)
    given = ["--app", "purchases:app", "--contract", "purchases:PURCHASE", "--contract", "purchases:REVIEW"]
    done = tenure("migrate", *given, "--database-url", dsn, cwd=tmp_path, PYTHONPATH=ROOT)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if "registered" in line] == [
        "registered contract purchase 1", "registered contract review 1",
    ]  # fmt: skip
    assert "registered" not in tenure("migrate", "--database-url", dsn, cwd=tmp_path, PYTHONPATH=ROOT).stdout
    assert (
        "purchase 1 (registered"
        in tenure("contracts", "list", "--database-url", dsn, cwd=tmp_path, PYTHONPATH=ROOT).stdout
    )
    printed = tenure("migrate", "--print", "--app", "purchases:app", cwd=tmp_path, PYTHONPATH=ROOT)
    assert "tenure_purchase" in printed.stdout
