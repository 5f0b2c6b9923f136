"""PostgreSQL from a wheel, started and stopped by us.

The picture: one directory is one cluster, and any number of processes share it.

    <directory>/
      gate      flock, exclusive and brief: one process at a time creates, starts or stops
      lock      flock, shared: one per holder, so the kernel keeps the reference count
      data/     the cluster, 0700, its unix socket inside (a long path moves the socket to /tmp/tenure-<hash>)
      log       what the server says
      .gitignore

The promise: the first holder starts the server, the last one to release stops it, and nobody needs to know
how many there are. The server listens on no network, survives Ctrl-C in a holder's terminal, and keeps fsync
on: this is a real database. Root may hold it too, though PostgreSQL refuses root (`account.py`). The settings
are those of the holder that started it.

The failure policy: a killed holder loses its lock to the kernel, so the next release or acquire counts
without it (a server that nobody holds stays up until then). A killed server is started again by the next
acquire, which waits for its orphans to leave the shared memory. A killed initdb leaves only a temporary
directory. When the server cannot start, `StartFailed` shows the tail of its log; when there is no
PostgreSQL at all, `NoBinaries` says what to install.
"""

from tenure.embedded.binaries import NoBinaries, find_binaries
from tenure.embedded.cluster import Cluster
from tenure.embedded.place import StartFailed

__all__ = ["Cluster", "NoBinaries", "StartFailed", "find_binaries"]
