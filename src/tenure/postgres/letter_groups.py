"""Dead letters by cause: a fingerprint of the failure puts those of one cause into one group.

    a dead letter is written, requeued or discarded ─▶ a trigger notes its id ─▶ upkeep counts it (`count_changes`)

The statements that write dead letters know nothing of groups: letters of older releases and of workers in other
languages are grouped too. Upkeep computes the fingerprint once and changes the counts of its group, so that a list of
groups reads no dead letters. One transaction takes the notes and changes the counts, and only one at a time does: none
is lost or counted twice.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from tenure.errors import Refused
from tenure.jobs import validation
from tenure.jobs.fingerprint import fingerprint, normalize
from tenure.jobs.formats import ids_to_text, to_one_line
from tenure.postgres.engine import EngineUser
from tenure.postgres.statement import Atomic, Plan, Row, statement

#: Letters that one transaction counts; each may have a traceback of 64,000 characters.
_BATCH: Final = 200
#: The number of types, tenants and releases that a list shows for each cause.
_PARTS: Final = 10
_MAX_UNCOUNTED: Final = 10_000
#: The workers of this many letters of a cause are counted, and this many workers are named.
MANY_LETTERS: Final = 1_000
_WORKERS: Final = 100


class GroupPart(NamedTuple):
    """The dead letters of a cause in one contract, type, tenant or release."""

    #: None: the release is unknown.
    value: str | None
    letters: int
    open: int
    first_seen: str
    last_seen: str


class GroupWorker(NamedTuple):
    """The dead letters of a cause whose jobs a worker held last."""

    #: None: nobody held them.
    worker: str | None
    letters: int
    open: int


class LetterGroup(NamedTuple):
    """The dead letters of one cause."""

    fingerprint: str
    #: All that were ever written, and those of them about which nothing is decided.
    letters: int
    open: int
    first_seen: datetime
    last_seen: datetime
    #: The youngest one, an example.
    letter_id: int
    reason_code: str
    error_type: str
    code: str | None
    #: The example's message without its data.
    message: str
    parts_json: str
    last_error_json: str | None
    #: The workers that held the jobs of the newest letters last; None: they were not counted.
    workers: Sequence[GroupWorker] | None = None

    @property
    def last_error(self) -> Any:
        """The failure of the example, with its traceback; None where it is no longer stored."""
        return None if self.last_error_json is None else json.loads(self.last_error_json)

    @property
    def example(self) -> str:
        """The first line of the example's message, with its data; without them where it is no longer stored."""
        error = self.last_error
        found = _text(error.get("message")) if isinstance(error, dict) else None
        return to_one_line((found or "").strip().partition("\n")[0]) or self.message

    @property
    def title(self) -> str:
        """The cause in one line; where the messages of its letters differ, with the one of the example."""
        code = f" [{self.code}]" if self.code else ""
        between = ": " if self.example == self.message else ", as in: "
        return f"{self.error_type}{code}{between}{self.example}"

    def parts(self, axis: str) -> list[GroupPart]:
        """The letters by `contract`, `type`, `tenant` or `release`, those with the most open ones first."""
        parts = [part for part in json.loads(self.parts_json) if part["axis"] == axis]
        return [GroupPart(*(part[name] for name in GroupPart._fields)) for part in parts]

    def others(self, axis: str) -> int:
        """How many more contracts, types, tenants or releases there are than `parts` has."""
        found = [part["of"] for part in json.loads(self.parts_json) if part["axis"] == axis]
        return found[0] - len(found) if found else 0

    def fields(self) -> dict[str, Any]:
        """Return the group as JSON shows it."""
        fields = ids_to_text(self._asdict(), "letter_id")
        del fields["parts_json"], fields["last_error_json"]
        parts = {
            f"{axis}s": [part._asdict() for part in self.parts(axis)]
            for axis in ("contract", "type", "tenant", "release")
        }
        workers = None if self.workers is None else [one._asdict() for one in self.workers]
        return {**fields, **parts, "example": self.example, "workers": workers, "last_error": self.last_error}


class LetterGroups(EngineUser):
    """Operations on groups of dead letters; `store.groups`."""

    async def list(
        self,
        *,
        contract: str | None = None,
        tenant_id: str | None = None,
        type: str | None = None,
        closed: bool = False,
        limit: int = 50,
    ) -> Sequence[LetterGroup]:
        """Return the causes, those with the most open dead letters first; with `closed`, those without any too."""
        if contract is not None:
            await self._engine.bound_contract(contract)  # refuses an unknown contract
        for field, given in (("tenant_id", tenant_id), ("type", type)):
            if given is not None:
                validation.check_name(field, given)
        rows = await self._engine.ask(
            "list_letter_groups", contract=contract, tenant=tenant_id, type=type, fingerprint=None, closed=closed,
            limit=validation.check_integer("limit", limit, 1, 1_000), parts=_PARTS,
        )  # fmt: skip
        return [LetterGroup(*row) for row in rows]

    async def show(self, group: str, *, tenant_id: str | None = None) -> LetterGroup:
        """Return a cause by its fingerprint, with the workers of its newest letters; refuses an unknown one."""
        rows = await self._engine.ask(
            "list_letter_groups", contract=None, tenant=tenant_id, type=None, closed=True, limit=1, parts=1_000,
            fingerprint=validation.check_name("group", group),
        )  # fmt: skip
        for row in rows:
            which = {"fingerprint": group, "tenant": tenant_id, "bound": MANY_LETTERS, "limit": _WORKERS}
            counts = await self._engine.ask("count_group_workers", **which)
            workers = [GroupWorker(worker or None, letters, open_) for worker, letters, open_ in counts]
            return LetterGroup(*row)._replace(workers=workers)
        raise Refused(
            None, f"there is no group {group} of dead letters. Next: tenure dlq groups", code="DLQ_GROUP_NOT_FOUND"
        )

    async def uncounted(self) -> int:
        """Return how many changes of dead letters no group has yet, counted up to 10,000."""
        ((count,),) = await self._engine.ask("count_letter_changes", limit=_MAX_UNCOUNTED)
        return int(count)

    async def count_changes(self) -> int:
        """Count a batch of dead letters that were written or decided; returns how many changes it took."""
        taken: int = await self._engine.run(_count_changes)
        return taken


def _count_changes() -> Plan[int]:
    taken: int = yield Atomic(_take_and_count())
    return taken


def _take_and_count() -> Plan[int]:
    ((is_alone,),) = yield statement("lock_letter_groups", {})
    if not is_alone:
        return 0
    taken = yield statement("take_letter_changes", {"limit": _BATCH})
    if not taken:
        return 0
    rows = yield statement("read_letters_to_group", {"ids": sorted({letter_id for (letter_id,) in taken})})
    known = [row for row in rows if row[7] is not None]
    recorded = [(row[0], row[7], row[1]) for row in known]
    changes = Counter[int]()
    for row in known:
        changes[row[7]] += (row[1] == "open") - (row[8] == "open")
    recorded += yield from _add([row for row in rows if row[7] is None])
    if moved := sorted((group, by) for group, by in changes.items() if by):
        groups, by = zip(*moved, strict=True)
        yield statement("change_letter_groups", {"groups": groups, "changes": by})
    if recorded:
        ids, groups, statuses = zip(*recorded, strict=True)
        yield statement("record_letter_causes", {"ids": ids, "groups": groups, "statuses": statuses})
    return len(taken)


def _add(rows: Sequence[Row]) -> Plan[list[tuple[int, int, str]]]:
    """Add new letters to their groups; returns letter, group and status of each."""
    by_key: dict[tuple[str, ...], list[tuple[Row, dict[str, Any]]]] = {}
    for row in rows:
        error = json.loads(row[9])
        error = error if isinstance(error, dict) else {"message": str(error)}
        key: tuple[str, ...] = (fingerprint(error), row[2], row[3], row[4], _text(error.get("release")) or "")
        by_key.setdefault(key, []).append((row, error))
    if not by_key:
        return []
    keys = sorted(by_key)
    added = zip(*(_added(key, by_key[key]) for key in keys), strict=True)
    groups = yield statement("add_to_letter_groups", dict(zip(_ADDED, map(list, added), strict=True)))
    return [
        (letter[0], group, letter[1]) for key, (group,) in zip(keys, groups, strict=True) for letter, _ in by_key[key]
    ]


#: What is added to a group, as parameters of the statement.
_ADDED: Final = (
    "fingerprints", "contracts", "tenants", "types", "releases", "letters", "opens", "firsts", "lasts", "examples",
    "reasons", "error_types", "codes", "messages",
)  # fmt: skip


def _added(key: tuple[str, ...], letters: Sequence[tuple[Row, dict[str, Any]]]) -> tuple[Any, ...]:
    """Return what these letters, in the order of their ids, add to their group."""
    (example, error), times = letters[-1], [letter[6] for letter, _ in letters]
    return (
        *key, len(letters), sum(letter[1] == "open" for letter, _ in letters), min(times), max(times), example[0],
        example[5], _text(error.get("type")) or "Error", _text(error.get("code")),
        normalize(_text(error.get("message")) or ""),
    )  # fmt: skip


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
