"""How long Tenure takes to start, and what it imports: the package, an application, and commands.

    ./dev bench start_time [--runs 10] [--python PATH] [--json]

Each program starts in a new Python with warm files. The time is the median of the runs, from the start of the process
to its end; the CPU time of those runs also holds on a busy machine. `--python` measures another environment, such as
one with a plain installation.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

_TASK = """import tenure
app = tenure.App(embedded=False)
@app.task
async def send(to: str) -> int:
    return len(to)
"""
_COMMAND = "import sys\nsys.argv = {words!r}\nfrom tenure.cli import main\nsys.exit(main())\n"
_COMPLETION = {"_TENURE_COMPLETE": "complete_bash", "COMP_WORDS": "tenure jobs l", "COMP_CWORD": "2"}
#: Name → the program and what it needs in its environment.
PROGRAMS: dict[str, tuple[str, dict[str, str]]] = {
    "python": ("pass", {}),
    "import tenure": ("import tenure", {}),
    "App() and a task": (_TASK, {}),
    "tenure --help": (_COMMAND.format(words=["tenure", "--help"]), {}),
    "tenure jobs --help": (_COMMAND.format(words=["tenure", "jobs", "--help"]), {}),
    "tenure jobs list --help": (_COMMAND.format(words=["tenure", "jobs", "list", "--help"]), {}),
    "tenure jobs l<TAB>": (_COMMAND.format(words=["tenure"]), _COMPLETION),
}
_LIST_MODULES = (
    "import atexit, json, sys\natexit.register(lambda: print(json.dumps([*sys.modules]), file=sys.stderr))\n"
)
_LIBRARIES = {"typer", "rich", "pydantic", "psycopg", "asyncio", "starlette", "uvicorn", "uvloop", "httpx2"}


def measure(python: str, name: str, runs: int) -> dict[str, Any]:
    """Run a program once for its modules, and some times more for its time."""
    program, environment = PROGRAMS[name]
    environ = {**os.environ, **environment}

    def run(source: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([python, "-c", source], env=environ, capture_output=True, text=True, check=True)

    modules = set(json.loads(run(_LIST_MODULES + program).stderr.splitlines()[-1]))
    seconds, cpu = [], []
    for _ in range(runs):
        begun, used = time.perf_counter(), _cpu_of_children()
        run(program)
        seconds.append(time.perf_counter() - begun)
        cpu.append(_cpu_of_children() - used)
    return {
        "name": name, "median_ms": round(1e3 * statistics.median(seconds)), "least_ms": round(1e3 * min(seconds)),
        "cpu_ms": round(1e3 * statistics.median(cpu)),
        "modules": len(modules), "of_tenure": sum(module.split(".")[0] == "tenure" for module in modules),
        "libraries": sorted(modules & _LIBRARIES),
    }  # fmt: skip


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure every program and print a table, or JSON."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=10, help="runs of each program; default: 10")
    options.add_argument("--python", default=sys.executable, help="the Python of the environment to measure")
    options.add_argument("--json", action="store_true", help="print the rows as JSON")
    asked = options.parse_args()
    rows = [measure(asked.python, name, asked.runs) for name in PROGRAMS]
    if asked.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'':<24} {'median':>9} {'least':>9} {'CPU':>9} {'modules':>8} {'Tenure':>7}  libraries")
    for row in rows:
        times = " ".join(f"{row[name]:>6} ms" for name in ("median_ms", "least_ms", "cpu_ms"))
        libraries = ", ".join(map(str, row["libraries"]))
        print(f"{row['name']:<24} {times} {row['modules']:>8} {row['of_tenure']:>7}  {libraries}".rstrip())


if __name__ == "__main__":
    main()
