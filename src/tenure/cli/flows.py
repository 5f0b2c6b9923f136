"""`tenure flows`: list flows, and draw one."""

from __future__ import annotations

import shlex
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from tenure.cli.command import Output, Store, command, table_output
from tenure.cli.options import Limit, OnlyTenant, id_parser
from tenure.errors import BadInput
from tenure.jobs.flow import Flow
from tenure.jobs.flow_json import flow_to_json, node_to_json

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
