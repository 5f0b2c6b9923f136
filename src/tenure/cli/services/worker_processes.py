"""`tenure worker --processes N`: a parent that starts worker processes, restarts them and forwards signals."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time

from tenure.task import PROCESS

#: Seconds before a worker process that ended by itself is started again.
_RESTART_AFTER_S = 1.0
_log = logging.getLogger("tenure.worker")


def run_processes(processes: int, name: str | None, *, until_idle: bool, metrics_port: int | None = None) -> int:
    """Run this command in several processes until a signal stops them; returns the exit code."""
    ends_well = (0,) if until_idle else ()
    # The last value of an option counts; behind `--` there are no options.
    own = sys.argv[1:]
    end = own.index("--") if "--" in own else len(own)
    children: list[subprocess.Popen[bytes]] = []
    signals: list[int] = []

    def start(number: int) -> subprocess.Popen[bytes]:
        named = ["--name", f"{name}-{number}"] if name else []
        port = ["--metrics-port", str(metrics_port + number - 1)] if metrics_port else []
        command = [sys.executable, "-m", "tenure", *own[:end], "--processes", "1", *named, *port, *own[end:]]
        return subprocess.Popen(command, env={**os.environ, PROCESS: str(number)})

    def forward(number: int, _: object) -> None:
        signals.append(number)
        for child in children:
            child.send_signal(number)

    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGINT, forward)
    children += [start(number) for number in range(1, processes + 1)]
    while not signals and any(child.poll() not in ends_well for child in children):
        time.sleep(0.2)
        for number, child in enumerate(children, 1):
            if child.poll() not in (None, *ends_well) and not signals:
                _log.error("worker process %d ended with %s, and is started again", number, child.returncode)
                time.sleep(_RESTART_AFTER_S)
                children[number - 1] = start(number)
    for child in children:  # also the children that were started while the signal came
        if signals and child.poll() is None:
            child.send_signal(signals[0])
    # A child that has hardly started when the signal comes ends by the signal itself, or by a KeyboardInterrupt.
    expected = {0}
    if signals:
        expected |= {-signal.SIGINT, *signals, *(-number for number in signals), *(128 + number for number in signals)}
    return max(0 if (code := child.wait()) in expected else abs(code) for child in children)
