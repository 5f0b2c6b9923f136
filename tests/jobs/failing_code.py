"""Code that fails for fourteen causes, each time with other data: the corpus of the tests of fingerprints.

The tests load it from several folders, with a different number of lines above it, like releases of an application.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sqlite3
from collections.abc import Callable
from typing import Any


class OutOfStock(Exception):
    """An article is missing."""


class ImportFailed(Exception):
    """A file could not be read."""


def word(rng: random.Random) -> str:
    """A word that is different each time."""
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(3, 12)))


def charge(payload: dict[str, Any]) -> Any:
    """Two causes in one function, with one type."""
    user = payload["user"]
    amount = payload["amount"]
    return user, amount


def missing_user(rng: random.Random) -> None:
    """A key is missing."""
    charge({"amount": rng.random(), word(rng): 1})


def missing_amount(rng: random.Random) -> None:
    """Another key is missing, in the same function."""
    charge({"user": word(rng)})


def bad_number(rng: random.Random) -> None:
    """A text is no number."""
    int(word(rng))


def out_of_stock(rng: random.Random) -> None:
    """An error of the application's own, with data in its message that nothing marks as data."""
    raise OutOfStock(f"no {word(rng)} left in {word(rng)}: {rng.randint(1, 99)} wanted")


def share(total: int, people: list[str]) -> float:
    """A division."""
    return total / len(people)


def no_people(rng: random.Random) -> None:
    """A division by zero, called from places that differ in depth."""
    if rng.random() < 0.5:
        share(rng.randint(1, 9), [])
    else:
        share(rng.randint(1, 9), people=[])


def refused(rng: random.Random) -> None:
    """Nobody listens at a port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can
        socket.create_connection(taken.getsockname(), timeout=rng.randint(5, 9))


def no_file(rng: random.Random) -> None:
    """A file is missing."""
    open(f"/nowhere/{word(rng)}/{rng.randint(1, 10**9)}.csv")  # noqa: SIM115


def not_json(rng: random.Random) -> None:
    """A page came in place of JSON."""
    json.loads(f"<html>{word(rng)} {rng.randint(400, 599)}</html>")


def duplicate(rng: random.Random) -> None:
    """A constraint of a database."""
    address = f"{word(rng)}@example.com"
    with sqlite3.connect(":memory:") as database:
        database.execute("create table users (email text unique)")
        database.executemany("insert into users values (?)", [(address,), (address,)])


def even(tree: list[Any]) -> int:
    """A recursion over two functions."""
    return odd(tree[0]) + 1


def odd(tree: list[Any]) -> int:
    """The other one."""
    return len(word(random.Random(0))) + even(tree[0])


def too_deep(rng: random.Random) -> None:
    """Data that contains itself: where the limit is met is chance."""
    tree: list[Any] = []
    tree.append(tree)

    def deeper(levels: int) -> int:
        return even(tree) if levels == 0 else deeper(levels - 1)

    deeper(rng.randint(0, 3))


def too_slow(rng: random.Random) -> None:
    """A time limit."""
    asyncio.run(asyncio.wait_for(asyncio.sleep(60), timeout=rng.random() / 1_000))


def decode(data: bytes) -> str:
    """A text from bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ImportFailed("the file is no text") from error


def not_text(rng: random.Random) -> None:
    """An error that another one caused."""
    decode(b"x" * rng.randint(0, 50) + b"\xff" + word(rng).encode())


def nobody(rng: random.Random) -> None:
    """None where an object was expected."""
    users: dict[str, Any] = {"": 1}
    found: Any = users.get(word(rng))
    found.send(rng.random())


def together(rng: random.Random) -> None:
    """A group of errors, with any number of them."""

    async def one(name: str) -> None:
        raise OSError(f"no route to {name}")

    async def all_of_them() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(rng.randint(1, 5)):
                group.create_task(one(word(rng)))

    asyncio.run(all_of_them())


CAUSES: tuple[Callable[[random.Random], None], ...] = (
    missing_user, missing_amount, bad_number, out_of_stock, no_people, refused, no_file, not_json, duplicate, too_deep,
    too_slow, not_text, nobody, together,
)  # fmt: skip
