"""`tenure flows`: list flows, draw one, cancel and resume them."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from tenure.cli.command import Output, Store, command, table_output
from tenure.cli.jobs.change import Mode
from tenure.cli.options import Actor, Json, Limit, OnlyTenant, Reason, id_parser
from tenure.cli.output import dump_json, note, refusal_fields
from tenure.errors import BadInput, Refused
from tenure.jobs.flow import Flow
from tenure.jobs.flow_json import cancelled_to_json, flow_to_json, node_to_json, resumed_to_json
from tenure.jobs.formats import to_one_line

_HEAD = ("flow", "name", "state", "ended", "failed", "tenant", "created (UTC)", "ended (UTC)", "by")
_FlowId = Annotated[int, typer.Argument(metavar="ID", help="The flow's id.", parser=id_parser("flow"))]
_State = Annotated[
    str | None, typer.Option("--state", help="Only running, cancelling, succeeded, failed or cancelled ones.")
]
_Name = Annotated[str | None, typer.Option("--name", help="Only flows of this name.")]
_After = Annotated[
    int | None, typer.Option("--after", metavar="ID", help="Go on after a page: its `next`.", parser=id_parser("after"))
]
_Svg = Annotated[str | None, typer.Option("--svg", metavar="FILE", help="Also write a picture to this file.")]

_FlowIds = Annotated[list[int], typer.Argument(metavar="ID...", help="The flows' ids.", parser=id_parser("flow"))]
_Mode = Annotated[
    Mode, typer.Option("--mode", help="soft asks the holders of jobs to stop; hard ends their leases at once.")
]
_Nodes = Annotated[list[str] | None, typer.Option("--node", metavar="NAME", help="Only this node; may be given again.")]
#: Nodes that run again are named up to this number.
_NAMED = 10


@command
async def list_(
    store: Store, state: _State = None, name: _Name = None, tenant: OnlyTenant = None, limit: Limit = 50,
    after: _After = None,
) -> Output:  # fmt: skip
    """List flows, the newest first, a page at a time."""
    found = await store.flows.list(state=state, name=name, tenant_id=tenant, limit=limit, after=after)  # type: ignore[arg-type]  # the store checks it
    following = str(found[-1].id) if len(found) == limit else None
    data = {"flows": [flow_to_json(one) for one in found], "next": following}
    options = {"--state": state, "--name": name, "--tenant": tenant, "--limit": str(limit), "--after": following}
    again = [part for option, value in options.items() if value is not None for part in (option, value)]
    notes = [] if following is None else [f"there may be more. Next: tenure flows list {shlex.join(again)}"]
    return table_output(data, _HEAD, map(_row, found), "no flow matches", notes)


@command
async def show(store: Store, flow_id: _FlowId, svg: _Svg = None) -> Output:
    """Draw a flow: its nodes with their states and times, the arrows between them, and the critical path."""
    from tenure.flows.svg import to_svg
    from tenure.flows.text import draw

    flow, nodes = await store.flows.read(flow_id), await store.flows.nodes(flow_id)
    now = datetime.now(UTC)
    data = {**flow_to_json(flow), "nodes": [node_to_json(node) for node in nodes]}
    notes = [] if svg is None else [_write(svg, to_svg(flow, nodes, now))]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    return Output(data, draw(flow, nodes, now, width=width, ascii_only=not _writes_unicode()), notes)


@command
async def cancel(
    store: Store, flow_ids: _FlowIds, actor: Actor, mode: _Mode = Mode.soft, reason: Reason = None,
    in_json: Json = False,
) -> None:  # fmt: skip
    """Cancel flows: no node starts any more, and live jobs are cancelled; exits 1 when a flow is refused."""

    async def one(flow_id: int) -> dict[str, Any]:
        cancelled = await store.flows.cancel(flow_id, mode=mode.value, reason=reason, actor=actor)
        return cancelled_to_json(cancelled)

    await _each(flow_ids, one, _print_cancelled, in_json)


@command
async def resume(store: Store, flow_ids: _FlowIds, actor: Actor, nodes: _Nodes = None, in_json: Json = False) -> None:
    """Run nodes of flows that failed or were cancelled again, with a new job each; exits 1 when a flow is refused."""

    if nodes and len(set(flow_ids)) > 1:
        raise BadInput("--node names nodes of one flow, and several are given. Next: resume them one by one")

    async def one(flow_id: int) -> dict[str, Any]:
        return resumed_to_json(await store.flows.resume(flow_id, nodes=nodes, actor=actor))

    await _each(flow_ids, one, _print_resumed, in_json)


async def _each(
    flow_ids: list[int], call: Callable[[int], Awaitable[dict[str, Any]]], show: Callable[[dict[str, Any]], None],
    in_json: bool,
) -> None:  # fmt: skip
    """Call for each flow, and print what was done; exits with 1 when one was refused."""
    results: list[dict[str, Any]] = []
    try:
        for flow_id in dict.fromkeys(flow_ids):
            try:
                result = await call(flow_id)
            except (Refused, BadInput) as error:  # concerns this flow alone
                refused = refusal_fields(flow_id, error)
                result = {"id": refused.pop("id"), "refused": refused}
            results.append(result)
            if in_json:
                continue
            if "refused" in result:
                note("{code}: {message}".format(**result["refused"]))
            else:
                show(result)
    finally:  # when the connection is lost half-way, print the results so far
        if in_json:
            print(dump_json(results))
    if any("refused" in result for result in results):
        raise typer.Exit(1)


def _print_cancelled(result: dict[str, Any]) -> None:
    flow = result["flow"]
    did = f"{result['waiting_count']:,} waiting nodes and {result['job_count']:,} jobs cancelled or asked to stop"
    print(f"flow {flow['id']}: {flow['state']}; {did}")
    for node, why in result["left"].items():
        note(f"left: node {to_one_line(node)} goes on: {to_one_line(why, 300)}")


def _print_resumed(result: dict[str, Any]) -> None:
    flow = result["flow"]
    jobs = [f"{to_one_line(node)} (job {job_id})" for node, job_id in list(result["jobs"].items())[:_NAMED]]
    more = [f"{len(result['jobs']) - _NAMED:,} more"] if len(result["jobs"]) > _NAMED else []
    again = f"{', '.join([*jobs, *more]) or 'no node'} again"
    waiting = f"; {result['waiting_count']:,} wait again" if result["waiting_count"] else ""
    print(f"flow {flow['id']}: {flow['state']}; runs {again}{waiting}\nNext: tenure flows show {flow['id']}")
    for node, why in result["left"].items():
        note(f"left: node {to_one_line(node)}: {to_one_line(why, 300)}")


def _row(flow: Flow) -> tuple[Any, ...]:
    ended = f"{flow.nodes - flow.open:,}/{flow.nodes:,}"
    return (
        flow.id, flow.name, flow.state, ended, flow.failed or None, flow.tenant_id, flow.created_at, flow.ended_at,
        flow.created_by,
    )  # fmt: skip


def _write(target: str, picture: str) -> str:
    """Write the picture; returns the note about it."""
    try:
        Path(target).write_text(picture, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot write {target}: {error.strerror}. Next: choose another file") from None
    return f"wrote {target}"


def _writes_unicode() -> bool:
    """Whether stdout can show the lines and signs of a drawing."""
    try:
        "├─✓●○✗⊘–×→…".encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        return False
    return True
