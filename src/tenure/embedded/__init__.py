"""PostgreSQL from a wheel, started and stopped by Tenure.

One directory is one cluster, and any number of processes share it:

    <directory>/
      gate      flock, exclusive and brief: one process at a time creates, starts or stops the server
      lock      flock, shared: one per holder, so the kernel keeps the reference count
      data/     the cluster, 0700, its unix socket inside (a long path moves the socket to /tmp/tenure-<hash>)
      log       the log of the server
      .gitignore

Guarantee: the first holder starts the server, and the last one to release stops it. The server listens on no
network, survives Ctrl-C in a holder's terminal, and keeps fsync on: it is a real database. Root may hold it too,
though PostgreSQL refuses root (`account.py`). The server has the settings of the holder that started it.

Failures: the kernel releases the lock of a killed holder, so the next release or acquire counts without it (a
server without a holder runs until then). The next acquire starts a killed server again; it waits until the orphaned
children have detached from the shared memory. A killed initdb leaves only a temporary directory. When the server
cannot start, `StartFailed` shows the end of its log; without PostgreSQL programs, `NoBinaries` says what to install.
"""

from tenure.embedded.binaries import NoBinaries, find_binaries
from tenure.embedded.cluster import Cluster
from tenure.embedded.default import acquire_default
from tenure.embedded.directory import StartFailed

__all__ = ["Cluster", "NoBinaries", "StartFailed", "acquire_default", "find_binaries"]
