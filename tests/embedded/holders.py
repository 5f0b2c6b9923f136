"""A process that holds a cluster: run as a script it is the process, imported it is the test's end of it."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from tenure.embedded import Cluster

SOURCE = Path(__file__).parents[2] / "src"


class Holder:
    """A child process that acquires at once and does what it is told."""

    def __init__(
        self, directory: Path, binaries: Path, *, become: int = os.geteuid(), start_new_session: bool = False
    ) -> None:
        """Start the process, as another user if asked; it says when it holds the cluster."""
        self.process = subprocess.Popen(
            [sys.executable, "-B", __file__, str(directory), str(binaries), str(become)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            start_new_session=start_new_session,
        )

    def __enter__(self) -> Self:
        """Nothing to do: it runs since it was made."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave no process behind."""
        self.process.kill()
        self.process.communicate()

    def dsn(self) -> str:
        """Wait until it holds the cluster."""
        return self._expect("held ")

    def fork(self) -> int:
        """Have it fork a child that has released its copy and lives on, and give the child's pid."""
        self._tell("fork")
        return int(self._expect("forked "))

    def release(self) -> None:
        """Have it release."""
        self._tell("release")
        self._expect("released")

    def kill(self) -> None:
        """Kill it with SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def _tell(self, word: str) -> None:
        assert self.process.stdin
        print(word, file=self.process.stdin, flush=True)

    def _expect(self, word: str) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line.startswith(word), line + self.process.stdout.read()
        return line.removeprefix(word).strip()


def main(directory: Path, binaries: Path, become: int) -> None:
    """Hold the cluster until told to release it, or killed."""
    if become != os.geteuid():
        # Only now, with everything imported: our Python may be in a home that the other user cannot enter.
        os.setgroups([])
        os.setresgid(become, become, become)
        os.setresuid(become, become, become)
        os.environ.update(HOME=str(directory), TMPDIR=str(directory))
    cluster = Cluster(directory, binaries=binaries)
    cluster.acquire()
    print("held", cluster.dsn, flush=True)
    for word in sys.stdin:
        if word.strip() == "fork":
            ours, theirs = os.pipe()
            pid = os.fork()
            if pid == 0:
                # The child releases its copy and keeps another: neither may matter to the parent's lock.
                os.dup(cluster._holds[0][1])
                cluster.release()
                os.write(theirs, b"released")
                time.sleep(600)
                os._exit(0)
            os.read(ours, 8)
            print("forked", pid, flush=True)
        if word.strip() == "release":
            cluster.release()
            print("released", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
