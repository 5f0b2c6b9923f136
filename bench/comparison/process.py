"""A process of an adapter: reads its output as it comes, detects a hang, and ends it by its pid."""

from __future__ import annotations

import os
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.comparison.installation import ROOT

_END_WITHIN_S = 5.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Stuck(Exception):
    """A process ended early, or printed nothing for too long."""


class Running:
    """One role of an adapter while it runs."""

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        self._output: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed when it is ended)
        self._what = " ".join(command[-3:])
        #: Handlers begun, the time of the first one, and the time of the last progress.
        self.begun, self.first, self.last_progress = 0, 0.0, time.monotonic()
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._errors, start_new_session=True,  # Ctrl-C is for the driver, which ends its processes
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._output.put(line.strip())
        self._output.put(None)

    def line(self, within: float) -> list[str]:
        """The words of the next line; refuses with Stuck when none comes."""
        try:
            line = self._output.get(timeout=within)
        except queue.Empty:
            raise Stuck(f"{self._what}: silent for {within:.0f} s{self._last_words()}") from None
        if line is None:
            raise Stuck(f"{self._what}: ended early{self._last_words()}")
        return line.split()

    def ask(self, question: str, within: float) -> list[str]:
        """Send a line and return the words of the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(question + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Stuck(f"{self._what}: ended early{self._last_words()}") from None
        while (words := self.line(within))[0] != question.split()[0]:
            pass  # a library may print, too
        return words

    def listen(self) -> None:
        """Read the worker output about started handlers."""
        while not self._output.empty():
            words = self.line(0)
            if words[:1] == ["at"]:
                if not self.begun:
                    self.first = float(words[2])
                self.begun, self.last_progress = int(words[1]), time.monotonic()

    def done(self, within: float) -> None:
        """Wait for its good end; refuses with Stuck."""
        try:
            code = self._process.wait(within)
        except subprocess.TimeoutExpired:
            raise Stuck(f"{self._what}: not done after {within:.0f} s") from None
        if code != 0:
            raise Stuck(f"{self._what}: failed{self._last_words()}")

    def wait_for_begun(self, count: int, patience: float) -> None:
        """Wait until so many handlers began; refuses with Stuck when nothing moves for so many seconds."""
        self.last_progress = time.monotonic()
        while self.begun < count:
            self.listen()
            if time.monotonic() - self.last_progress > patience:
                raise Stuck(f"{self._what}: {self.begun} of {count} began, and no more for {patience:.0f} s")
            time.sleep(0.002)

    def processor(self) -> float | None:
        """Seconds of processor time so far, with those of children that ended; None where /proc does not say."""
        return processor_of(self._process.pid)

    def peak_mb(self) -> float | None:
        """The most memory that it ever had."""
        try:
            status = Path(f"/proc/{self._process.pid}/status").read_text()
        except OSError:
            return None
        return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), None)

    def end(self) -> None:
        """End it, politely first."""
        self._process.terminate()
        try:
            self._process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            try:
                if pipe is not None:
                    pipe.close()
            except BrokenPipeError:
                pass
        self._errors.close()

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        return f": {lines[-1][:300]}" if lines else ""


def processor_of(pid: int) -> float | None:
    """Seconds of processor time of a process and of its children that ended; None where /proc does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return None
    own, children = (sum(int(ticks) for ticks in fields[at : at + 2]) / _TICKS for at in (11, 13))
    # The threads say it in nanoseconds, the process in hundredths of a second; but threads that ended say nothing.
    return max(own, sum(map(_thread_seconds, threads))) + children


def _thread_seconds(thread: Path) -> float:
    try:
        return int((thread / "schedstat").read_text().split()[0]) / 1e9
    except OSError:
        return 0.0
