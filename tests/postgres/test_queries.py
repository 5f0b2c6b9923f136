"""Every stored statement is valid SQL as it stands, and variants are what their template renders."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

from tenure.postgres.connect import engine_dsn
from tenure.postgres.statement import Query, query
from tests.postgres.render import QUERIES, rendered, variants

STORED = sorted(path.stem for path in QUERIES.glob("*.sql"))
#: The rules that several statements share, as SQL functions.
RULES = ("lease_expired", "heartbeats_missed", "is_holder", "has_budget")
#: Sets up its transaction and has no plan.
NO_PLAN = {"begin_snapshot"}


def text(name: str) -> str:
    """A stored file as it stands."""
    return Path(QUERIES, f"{name}.sql").read_text(encoding="utf-8")


def test_every_statement_can_be_prepared(dsn: str) -> None:
    with psycopg.connect(engine_dsn(dsn), autocommit=True) as engine:
        for name in STORED:
            if name not in NO_PLAN:
                engine.execute(b"prepare stored as " + query(name).text.encode())
                engine.execute("deallocate stored")


@pytest.mark.parametrize("name", STORED)
def test_a_file_begins_with_a_sentence_and_has_no_marked_line(name: str) -> None:
    first, *lines = text(name).splitlines()
    assert first.startswith("-- ")
    assert not [line for line in lines if re.match(r"\s*--[a-z_]+:", line)]


@pytest.mark.parametrize("name", sorted(variants()))
def test_a_variant_is_what_its_template_renders(name: str) -> None:
    assert text(name) == rendered(name), "python -m tests.postgres.render writes it"


def test_the_shared_rules_are_inlined(dsn: str) -> None:
    """A function that is not inlined stands in the plan by its name, and is called for each row."""
    using = [name for name in STORED if any(f"tenure.{rule}(" in text(name) for rule in RULES)]
    with psycopg.connect(engine_dsn(dsn), autocommit=True) as engine:
        assert len(using) > 20
        for name in using:
            for mode in ("custom", "generic"):
                plan = explained(engine, query(name), mode)
                assert [rule for rule in RULES if f"{rule}(" in plan] == [], name


def explained(engine: psycopg.Connection[tuple[object, ...]], asked: Query, mode: str) -> str:
    """The plan of a statement without values, with its expressions."""
    engine.execute(f"set plan_cache_mode = force_{mode}_plan".encode())
    engine.execute(b"prepare stored as " + asked.text.encode())
    values = ", ".join(["null"] * len(asked.names))
    rows = engine.execute(f"explain (verbose) execute stored {f'({values})' if values else ''}".encode()).fetchall()
    engine.execute("deallocate stored")
    return "\n".join(str(row[0]) for row in rows)
