"""A mutant: one bug, planted in a copy of the sources, and the tests that must not let it live."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.postgres.render import render

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src"

#: The killer of a contract that refuses to be imported: it contradicts itself, and says so.
SOUNDNESS = "soundness"


class Misfit(Exception):
    """A mutant that cannot be planted: the catalogue has to follow the sources."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug: where, which text it replaces (it stands there exactly once) by what, and who must notice."""

    name: str
    wrong: str
    #: Below src/tenure.
    file: str
    find: str
    put: str
    #: pytest node ids below tests/, each of which must fail; or SOUNDNESS alone.
    killers: tuple[str, ...]

    @property
    def nodes(self) -> list[str]:
        """The killers as pytest is told of them; none where the contract itself refuses."""
        return [f"tests/{killer}" for killer in self.killers if killer != SOUNDNESS]

    def line(self, sources: Path = SOURCES) -> int:
        """The line that it changes first; refuses when its text does not stand there exactly once."""
        return self._split(sources)[0].count("\n") + 1

    def planted(self, sources: Path = SOURCES) -> str:
        """The text of its file with the bug in it."""
        before, after = self._split(sources)
        return before + self.put + after

    def plant(self, sources: Path) -> None:
        """Put the bug into a copy of the sources; one in a template goes into every variant."""
        planted = self.planted(sources)
        (sources / "tenure" / self.file).write_text(planted, encoding="utf-8")
        if "/templates/" in self.file:
            render(sources / "tenure" / "postgres" / "queries")

    def _split(self, sources: Path) -> tuple[str, str]:
        text = (sources / "tenure" / self.file).read_text(encoding="utf-8")
        before, *after = text.split(self.find)
        if len(after) != 1:
            raise Misfit(f"{self.name}: its text stands {len(after)} times in {self.file}, and must stand there once")
        if self.put == self.find:
            raise Misfit(f"{self.name}: changes nothing")
        return before, after[0]
