"""`tenure contracts`: the lifecycles that are known, as text and as pictures, and what an upgrade takes away.

Without the address of a database these are the ones that come with Tenure, and nothing is started. With one, what is
registered there comes first. A contract in a file is what `tenure contracts show --json` has printed.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer

from tenure.cli import exploring
from tenure.cli.finding import NAMING, contracts, known

if TYPE_CHECKING:
    from tenure.contract import Contract, View
    from tenure.contract import Path as DeclaredPath

_WIDTH = 110


class Format(StrEnum):
    """How a diagram is written."""

    mermaid = "mermaid"
    svg = "svg"


_Name = typer.Argument(metavar="NAME", help=NAMING)
_Version = typer.Option(None, "--version", help="Which version; default the newest.")
_Database = typer.Option(None, "--database-url", help="Also what is registered there; default DATABASE_URL, else none.")
_Json = typer.Option(False, "--json", help="The same, as JSON.")
_Format = typer.Option(Format.mermaid, "--format", help="Mermaid text, or a picture as SVG.")


def add_to(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(no_args_is_help=True, help="The declared lifecycles, and what an upgrade takes away.")
    group.command("list")(list_)
    group.command("show")(show)
    group.command("diagram")(diagram)
    group.command("diff")(diff)
    group.command("verify")(exploring.verify)
    app.add_typer(group, name="contracts")


def list_(database_url: str | None = _Database, as_json: bool = _Json) -> None:
    """List the contracts that are known: built in, and with the address of a database those registered there."""
    found = known(database_url)
    if as_json:
        print(json.dumps({"contracts": [one.row() for one in found]}))
        return
    for one in found:
        origins = [*["built in"] * one.built_in, *[f"registered {at}" for at in [one.registered_at] if at]]
        print(f"{one.name} {one.version} ({', '.join(origins)})")
        for line in (one.declaration.get("title", ""), ", ".join(one.declaration.get("states", ()))):
            print(textwrap.fill(line, _WIDTH, initial_indent="    ", subsequent_indent="    "))


def show(
    name: str = _Name, version: str | None = _Version, database_url: str | None = _Database, as_json: bool = _Json
) -> None:
    """Show a contract: its states, paths, numbers, events and views."""
    (contract,) = contracts([f"{name}@{version}" if version else name], database_url)
    print(json.dumps(contract.describe(), indent=2) if as_json else "\n".join(_described(contract)))


def diagram(
    name: str = _Name,
    version: str | None = _Version,
    form: Format = _Format,
    database_url: str | None = _Database,
    as_json: bool = _Json,
) -> None:
    """Draw a contract from its declaration."""
    from tenure import diagram as domain

    (contract,) = contracts([f"{name}@{version}" if version else name], database_url)
    drawn = domain.svg(contract) if form is Format.svg else domain.mermaid(contract)
    said = {"name": contract.name, "version": contract.version, "format": form.value, "diagram": drawn}
    print(f"{json.dumps(said)}\n" if as_json else drawn, end="")


def diff(
    before: str = typer.Argument(metavar="A", help="What there is: a NAME, a file, or module:NAME."),
    after: str = typer.Argument(metavar="B", help="What comes: a NAME, a file, or module:NAME."),
    database_url: str | None = _Database,
    as_json: bool = _Json,
) -> None:
    """Say what an upgrade from A to B takes away and what it adds; exits 1 when something is taken away."""
    from tenure.versions import differences

    old, new = contracts([before, after], database_url)
    lost, added, altered = list(differences(old, new)), list(_additions(old, new)), list(_alterations(old, new))
    if as_json:
        ends = {way: {"name": end.name, "version": end.version} for way, end in (("from", old), ("to", new))}
        said = {"additive": not lost, "takes_away": lost, "adds": added, "alters": altered}
        print(json.dumps({**ends, **said}))
    else:
        print(f"{old.name} {old.version} → {new.name} {new.version}: ", end="")
        print("not additive" if lost else "additive" if added or altered else "nothing changes")
        for word, changes in (("takes away", lost), ("adds", added), ("alters", altered)):
            print("".join(f"{word}: {change}\n" for change in changes), end="")
    if lost:
        raise typer.Exit(1)


def _additions(old: Contract, new: Contract) -> Iterator[str]:
    """What the new one has that the old one had not."""
    for state, roles in new.states.items():
        if more := set(roles) - set(old.states.get(state, ())):
            yield f"state {state} ({', '.join(sorted(more))})"
    for path in new.paths:
        for source in path.sources:
            if old.path(path.trigger, source, path.choice) is None:
                yield f"path {path.trigger}{f' [{path.choice}]' if path.choice else ''} from {source}"
    for what, before, after in (
        ("cancel mode", old.cancel_modes, new.cancel_modes),
        ("dead letter reason", old.dead_letters.reasons, new.dead_letters.reasons),
        ("dead letter stage", old.dead_letters.stages, new.dead_letters.stages),
        ("fact", old.facts, new.facts),
        ("column", _columns(old), _columns(new)),
        ("event", _events(old), _events(new)),
    ):
        had = set(before)
        yield from (f"{what} {each}" for each in dict.fromkeys(after) if each not in had)


def _columns(contract: Contract) -> Iterable[str]:
    for view in contract.views:
        yield from (f"{view.name}.{column}" for column in view.columns)
        yield from (f"{view.name}.{column}.{key}" for column, keys in view.objects.items() for key in keys)


def _events(contract: Contract) -> Iterable[str]:
    for event in contract.events:
        for on in event.on:
            yield from (f"{name} on {on}" for name in (event.name, *(f"{event.name}.{key}" for key in event.keys)))


#: Parts of which `differences` and `_additions` speak.
_COMPARED = re.compile(
    r"(name|version|states|initial|paths|counter|views|events|cancel_modes|invalid_transition|facts)\b"
    r"|budget\.(extra|name)|lease\.after_expiry|lease\.heartbeat\Z|dead_letters\.(mode|reasons|stages|reviewers)"
)


def _alterations(old: Contract, new: Contract) -> Iterator[str]:
    """What else is another value: numbers, ranges, and rules that an old row follows as before."""
    before, after = (dict(_leaves("", contract.describe())) for contract in (old, new))
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name) and not _COMPARED.match(name):
            yield f"{name} is {json.dumps(after.get(name))} instead of {json.dumps(before.get(name))}"


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _leaves(f"{name}.{key}" if name else key, part)
    else:
        yield name, value


def _described(contract: Contract) -> Iterator[str]:
    """The whole declaration in words."""
    yield f"{contract.name} {contract.version}: {contract.title}"
    states = [
        (name, " or ".join(roles), "initial" * (name == contract.initial)) for name, roles in contract.states.items()
    ]
    yield from _table("States", states)
    yield from _table("Paths", [_path_row(contract, path) for path in contract.paths])
    yield from _table("Rules", [*_rules(contract)])
    yield from _table(
        "Events", [(one.name, f"on {', '.join(one.on)}: {', '.join(one.keys) or 'no keys'}") for one in contract.events]
    )
    yield from _table("Views", [(f"tenure_{contract.name}.{view.name}", _view(view)) for view in contract.views])
    yield from _table("Settings", [(knob, f"sets {number}") for knob, number in contract.knobs.items()])


def _view(view: View) -> str:
    objects = {column: f"{column} ({', '.join(keys)})" for column, keys in view.objects.items()}
    return f"of {view.rows}: {', '.join(objects.get(column, column) for column in view.columns)}"


def _table(title: str, rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """A section with its columns under each other; the last one is wrapped."""
    if not rows:
        return
    yield f"\n{title}"
    widths = [max(len(cell) for cell in column) for column in list(zip(*rows, strict=True))[:-1]]
    for *cells, last in rows:
        start = "  " + "".join(f"{cell:<{width}}  " for cell, width in zip(cells, widths, strict=True))
        room = max(_WIDTH - len(start), 40)
        for number, line in enumerate(textwrap.wrap(last, room) or [""]):
            yield f"{start if number == 0 else ' ' * len(start)}{line}".rstrip()


def _path_row(contract: Contract, path: DeclaredPath) -> tuple[str, str, str]:
    hops = [hop.state + f":{hop.role}" * (len(contract.states[hop.state]) > 1) for hop in path.hops]
    due = {"now": "due at once", "backoff": "due after the backoff", "given": "due when the caller says"}.get(path.due)
    letter = f"dead letter {path.letter}" if path.letter else None
    trigger = f"{path.trigger} [{path.choice}]" if path.choice else path.trigger
    return trigger, " → ".join([" | ".join(path.sources), *hops]), ", ".join(filter(None, (due, letter)))


def _rules(contract: Contract) -> Iterator[tuple[str, str]]:
    from tenure.backoff import delay_ms
    from tenure.contract import Jitter

    counter, budget, backoff, lease = contract.counter, contract.budget, contract.backoff, contract.lease
    yield "counter", f"{counter.name}, begins at {counter.initial}, rises on {', '.join(counter.on)}"
    executions, span = budget.executions(budget.default), f"{budget.minimum} to {budget.maximum}"
    yield "budget", f"{budget.name} {budget.default} ({span}): at most {executions} executions"
    still = replace(backoff, jitter=Jitter("multiply", 1, 1))
    delays = ", ".join(_span(delay_ms(still, 0, claims)) for claims in range(1, min(max(executions, 2), 7)))
    low, high = backoff.jitter.low, backoff.jitter.high
    spread = f"times {low:g} to {high:g}" if backoff.jitter.form == "multiply" else f"plus {low:g} to {high:g} ms"
    capped = ", the cap again after that" * backoff.cap_after_jitter
    yield "backoff", f"{delays}; factor {backoff.factor:g}, cap {_span(backoff.cap_ms)}, {spread}{capped}"
    yield "lease", f"{_span(lease.default_ms)} ({_span(lease.minimum_ms)} to {_span(lease.maximum_ms)})"
    if beat := lease.heartbeat:
        span = f"{_span(beat.minimum_ms)} to {_span(beat.maximum_ms)}"
        yield "", f"a beat every {_span(beat.default_ms)} ({span}); {beat.missed} missed beats make an orphan"
    kept = "a holder may write until the lease is taken" if lease.after_expiry == "valid_until_taken" else "forfeited"
    yield "", f"once expired: {kept}; closed by the next claim" if lease.closed_by_claim else f"once expired: {kept}"
    yield "", f"recorded as {json.dumps(lease.error)}"
    yield from _failures(contract)


def _failures(contract: Contract) -> Iterator[tuple[str, str]]:
    rule = {"any": "every error", "flag": "only an error that says retryable", "class": "by the error's class"}
    yield "retryable", rule[contract.retryable.rule]
    for name, verdict in contract.retryable.classes.items():
        yield "", f"{name} → {verdict.trigger}" + f" ({verdict.reason})" * (verdict.reason is not None)
    if contract.retryable.rule == "class":
        yield "", "any other → retry, unless it says it is not retryable"
    letters = contract.dead_letters
    mode = {"none": "none", "record": "written with the last hop", "staged": "written in a transaction of their own"}
    yield "dead letters", mode[letters.mode]
    said = {"reasons": letters.reasons, "stages": letters.stages}
    yield from (("", f"{word}: {', '.join(values)}") for word, values in said.items() if values)
    if letters.reviewers:
        yield "", f"a discard needs {letters.reviewers} people"
    yield "cancel", ", ".join(contract.cancel_modes) or "nobody can ask for it"
    if contract.closed_to_requests:
        yield "", f"no request may {', '.join(contract.closed_to_requests)}"
    yield "wake-up", contract.wakeup
    yield "facts", ", ".join(contract.facts) or "none"
    yield "execution key", f"job id:{'claims' if contract.execution_key == 'claims' else contract.counter.name}"
    yield "invalid hop", f"refused with {contract.invalid_transition}"


def _span(ms: float) -> str:
    for unit, size in (("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= size:
            return f"{ms / size:.3g} {unit}"
    return f"{ms:g} ms"
