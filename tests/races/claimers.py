"""A warm set of claimers: processes with a connection each, released together by a barrier.

They are forked once, before there is a thread or an event loop, and then told what to do again and again.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any, Self
from uuid import UUID

from tenure.errors import Refused
from tenure.jobs.job import Job
from tests.races.sessions import Session

_FORK = multiprocessing.get_context("fork")
_GROUPS = (8, 32, 64)
_AT_MOST = 60.0  # seconds for one order

Work = Callable[..., Any]


class Claimers:
    """Sixty-four processes; `run` makes the first few of them, or all, do the same at the same time."""

    def __init__(self, dsn: str) -> None:
        self._barriers = {count: _FORK.Barrier(count) for count in _GROUPS}
        self._pipes: list[Connection] = []
        self._processes = []
        for n in range(max(_GROUPS)):
            ours, theirs = _FORK.Pipe()
            process = _FORK.Process(target=_serve, args=(n, dsn, theirs, self._barriers), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            with contextlib.suppress(OSError):
                pipe.send(None)
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()
            pipe.close()

    def run(self, count: int, work: Work, *values: Any) -> list[Any]:
        """What each of `count` processes answered, None from one that died at it; a fault in one is raised here."""
        for pipe in self._pipes[:count]:
            pipe.send((count, work, values))
        answers = []
        for pipe in self._pipes[:count]:
            assert pipe.poll(_AT_MOST), "a claimer did not answer"
            try:
                answers.append(pipe.recv())
            except EOFError:
                answers.append(None)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers


def _serve(n: int, dsn: str, pipe: Connection, barriers: dict[int, Barrier]) -> None:
    with Session(dsn, f"claimer-{n}") as session:
        while (order := pipe.recv()) is not None:
            count, work, values = order
            try:
                barriers[count].wait(_AT_MOST)
                pipe.send(work(session, *values))
            except Exception as fault:
                pipe.send(fault)


def claim_once(session: Session, contract: str, queue: str) -> list[int]:
    """The ids won by one claim."""
    return [job.id for job in session.claim(contract, queue)]


def claim_all(session: Session, contract: str, queue: str) -> list[int]:
    """The ids won one by one until the queue has none left."""
    won: list[int] = []
    give_up = time.monotonic() + _AT_MOST
    while time.monotonic() < give_up:
        ids = claim_once(session, contract, queue)
        won += ids
        if not ids and not _left(session, contract, queue, ("ready",)):
            return won
    raise AssertionError("the queue was never empty")


def claim_keyed(session: Session, contract: str, queue: str, limit: int, key: UUID) -> Any:
    """What a claim with this key is told: the leases won, or the name of the refusal."""
    try:
        return [job.held for job in session.claim(contract, queue, limit, key)]
    except Refused as refusal:
        return type(refusal).__name__


def claim_one(session: Session, contract: str, job_id: int) -> str:
    """Who won this very job, or the name of the refusal."""
    answer = session.claim_by_id(contract, job_id)
    return f"won by {answer.lease_owner}" if isinstance(answer, Job) else type(answer).__name__


def work_or_die(session: Session, contract: str, queue: str, mortal: set[str]) -> int:
    """Claim, start and succeed until nothing is left; a mortal one is killed while it holds its first job.

    The first work of the others lasts until all mortal ones have claimed, so that each of these gets a job.
    """
    held = 0
    give_up = time.monotonic() + _AT_MOST
    while time.monotonic() < give_up:
        jobs = session.claim(contract, queue)
        for job in jobs:
            held += 1
            session.finish("start", job.held)
            if session.name in mortal:
                os.kill(os.getpid(), signal.SIGKILL)
            while held == 1 and not _all_claimed(session, queue, mortal) and time.monotonic() < give_up:
                time.sleep(0.02)
            session.finish("succeed", job.held)
        if not jobs:
            if not _left(session, contract, queue, ("ready", "leased", "active")):
                return held
            time.sleep(0.1)
    raise AssertionError("the queue was never empty")


def _all_claimed(session: Session, queue: str, mortal: set[str]) -> bool:
    """Whether each of these has claimed a job of the queue."""
    began = session.sql(
        "select distinct actor from tenure.event where trigger = 'claim' and actor = any(%s) and job_id in "
        "(select id from tenure.job where queue = %s union all select id from tenure.job_done where queue = %s)",
        list(mortal), queue, queue,
    )  # fmt: skip
    return len(began) == len(mortal)


def _left(session: Session, contract: str, queue: str, roles: tuple[str, ...]) -> bool:
    return bool(
        session.sql(
            "select from tenure.job where contract = %s and queue = %s and role = any(%s) limit 1",
            contract,
            queue,
            [*roles],
        )
    )
