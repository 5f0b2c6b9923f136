"""Nothing in the repository names a package registry or a place on the machine it was written on."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements.lock", "requirements-dev.lock")

# Put together from pieces, so that this file does not contain what it forbids.
REGISTRIES = ("pypi" + ".org", "files." + "pythonhosted", "registry." + "npmjs")
HOMES = ("work", "root")
FORBIDDEN = re.compile(
    "|".join(
        [
            *(re.escape(address) for address in REGISTRIES),
            # Only where a path begins: the same word inside a longer path is somebody else's business.
            *(rf"(?<![\w.~-])/{home}/" for home in HOMES),
        ]
    )
)
IGNORED_DIRECTORIES = {".git", ".venv", ".tenure", "__pycache__", "build", "dist", ".hypothesis"}


def files_of_the_repository() -> list[Path]:
    """What git tracks or would track; without a usable git, what is there and is not obviously made."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return sorted(files_below(ROOT))
    return sorted(ROOT / os.fsdecode(name) for name in done.stdout.split(b"\0") if name)


def files_below(directory: Path) -> Iterator[Path]:
    """Every file below a directory, except what tools make."""
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            if path.name not in IGNORED_DIRECTORIES and not path.name.endswith("_cache"):
                yield from files_below(path)
        else:
            yield path


def forbidden_in(text: str) -> list[str]:
    """The lines that name a registry or a path of one machine."""
    return [line for line in text.splitlines() if FORBIDDEN.search(line)]


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    found: list[str] = []
    looked_at = 0
    for path in files_of_the_repository():
        content = path.read_bytes() if path.is_file() else b"\0"
        if b"\0" in content:  # not text, or deleted and not yet committed
            continue
        looked_at += 1
        found += [f"{path.relative_to(ROOT)}: {line}" for line in forbidden_in(content.decode(errors="replace"))]
    assert looked_at > len(LOCKS)
    assert found == []


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_pins_and_hashes_everything_and_holds_no_address(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "://" not in text  # some packages are called httpx and the like
    assert "file:" not in text
    pinned = re.findall(r"^([a-z0-9-]+)==\S+", text, re.MULTILINE)
    entries = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert len(pinned) == len(entries) > 10
    assert all(line.endswith("\\") for line in entries), "an entry without a hash"


def test_the_development_lock_contains_the_other_one() -> None:
    use, development = (
        set(re.findall(r"^([a-z0-9-]+==\S+)", (ROOT / name).read_text(), re.MULTILINE)) for name in LOCKS
    )
    assert use < development


@pytest.mark.parametrize("bad", [f"--index-url https://{REGISTRIES[0]}/simple", f"see /{HOMES[0]}/main/README.md"])
def test_the_search_finds_what_it_forbids(bad: str) -> None:
    assert forbidden_in(f"first line\n{bad}\n") == [bad]
