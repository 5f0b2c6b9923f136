"""Commands as real processes that begin at once: forked from one that has loaded what commands load.

Starting Python and importing half a second's worth of modules is most of what a command costs, and no test is about
that. The process that is forked from has one thread, no connection and no event loop; each command gets its own
arguments, environment, directory, output and exit code.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any


def tenure(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command; its exit code and what it printed."""
    clean = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    with tempfile.TemporaryDirectory(prefix="tenure-cli-") as place:
        asked = {"arguments": arguments, "cwd": str(cwd), "environ": {**clean, **environ}, "place": place}
        code = _ask(asked)
        said, told = (Path(place, name).read_text(encoding="utf-8") for name in ("out", "err"))
    return subprocess.CompletedProcess(["tenure", *arguments], code, said, told)


def _ask(asked: dict[str, Any]) -> int:
    parent = _parent(os.getpid())
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write(json.dumps(asked) + "\n")
    parent.stdin.flush()
    return int(parent.stdout.readline())


@cache
def _parent(_: int) -> subprocess.Popen[str]:
    """The process to fork from; it ends with the one that began it, whose end of the pipe is then closed."""
    command = [sys.executable, "-m", "tests.cli.forked"]
    place = Path(__file__).parents[2]
    return subprocess.Popen(command, cwd=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _serve() -> None:
    import psycopg
    import psycopg_pool
    import pydantic

    import tenure.postgres.migrate
    import tenure.postgres.read
    import tenure.postgres.store
    import tenure.proof
    import tenure.upkeep  # noqa: F401
    from tenure.cli.command_table import COMMANDS, GROUPS, load_command

    del psycopg, psycopg_pool, pydantic
    for name in (*COMMANDS, *GROUPS):
        load_command(name)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if not child:
            _become(asked)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(asked: dict[str, Any]) -> None:
    """Be that command, to its end."""
    from tenure.cli import main

    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environ"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(os.path.join(asked["place"], name), os.O_WRONLY | os.O_CREAT), number)
    sys.argv = ["tenure", *asked["arguments"]]
    code = 1
    try:
        code = main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()  # as at the end of any command: an embedded PostgreSQL is stopped there
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
