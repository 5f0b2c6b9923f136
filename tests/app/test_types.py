"""A type checker accepts right calls of tasks and rejects wrong ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RIGHT = HERE / "calls_right.py"

#: A wrong line, and the kind of error that mypy must name for it.
WRONG = {
    "await send.enqueue('a@b.c')": "call-arg",
    "await send.enqueue(42, subject='hi')": "arg-type",
    "await send.enqueue('a@b.c', subject='hi', copy='x')": "call-arg",
    "await send.options(delay=60).enqueue('a@b.c', topic='hi')": "call-arg",
    "add.enqueue_sync('one')": "arg-type",
    "add.enqueue_in(connection, 'one')": "call-overload",
    "add.enqueue_in('a', 1)": "call-overload",
    "now: tenure.Ticket[int] = add.enqueue_in(asynchronous, 1)": "assignment",
    "await app.enqueue_many_in(connection, [add.call(1)])": "misc",
    "await report.enqueue(connection, 'May')": "call-arg",
    "send.call('a@b.c')": "call-arg",
    "wrong: str = await app.result(await send.enqueue('a@b.c', subject='hi'))": "arg-type",
    "await send.options(soon=True).enqueue('a@b.c', subject='hi')": "call-arg",
    "app.task(retries=3)": "call-overload",
    "app.every(minutes=5)(send)": "type-var",
    "app.every(minutes=5, args=['a@b.c'])(len)": "type-var",
    "app.every(minutes=5, missed='never')": "call-overload",
    "await app.schedule('x', send.call('a@b.c'), minutes=5)": "call-arg",
    "await app.schedule('x', send, minutes=5)": "arg-type",
    "clean_up.enqueue_sync('many')": "arg-type",
    "app.task(unique='sometimes')": "call-overload",
    "app.task(unique='active', on_conflict='ignore')": "call-overload",
    "send.options(unique=5)": "arg-type",
    "send.options(expires='soon')": "arg-type",
    "app.flow('f', on_failure='retry')": "arg-type",
    "app.task(reads='prices', write=['totals'])": "call-overload",
    "app.on('prices')(add)": "type-var",
    "app.dataset('prices', kept=3)": "call-overload",
    "await app.datasets.cutover(['prices'])": "list-item",
    "flow.node(send)": "arg-type",
    "flow.node(add.call(rows.result))": "arg-type",
    "flow.node(add.call(rows))": "arg-type",
    "flow.map(add.call(whole.each))": "misc",
    "flow.map(publish.call(rows.each), after=rows)": "arg-type",
    "flow.chord([send.call('a', subject='b')], publish)": "arg-type",
    "flow.chain(rows_of.call('x'), publish)": "misc",
    "text: str = await app.flows.result(1, whole)": "arg-type",
}


def checked(path: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """What mypy says of a file."""
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(cache), str(path)],
        capture_output=True, text=True, check=False, cwd=HERE.parents[1],
    )  # fmt: skip


def test_right_calls_are_accepted_and_each_wrong_one_is_rejected(tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("calls")
    right = checked(RIGHT, place / "cache")
    assert right.returncode == 0, right.stdout
    lines = RIGHT.read_text().splitlines()
    wrong = place / "calls_wrong.py"
    wrong.write_text("\n".join([*lines, *(f"    {line}" for line in WRONG)]) + "\n")
    said = checked(wrong, place / "cache").stdout
    for number, (line, kind) in enumerate(WRONG.items(), len(lines) + 1):
        mine = [told for told in said.splitlines() if told.startswith(f"{wrong}:{number}: error")]
        assert any(told.endswith(f"[{kind}]") for told in mine), f"{line}\n{said}"
