"""The views of each contract, in the words of its document, generated from the declaration.

A view reads live and finished rows, runs with the rights of its reader, and adds no cost to a move. Events are
projections too: a hop shows as one event, two, or none, each with exactly the keys that its document names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tenure.contracts.declaration import Contract, Event, View

_ERROR = "j.last_error"


def _same_name(row: str, fields: str) -> dict[str, str]:
    """The fields that have the name of their column."""
    return {field: f"{row}.{field}" for field in fields.split()}


#: field → SQL, over a row j of tenure.job or tenure.job_done.
JOB: Mapping[str, str] = {
    **_same_name("j", "id queue type state counter claims priority payload result origin_letter progress checkpoint"),
    "tenant": "j.tenant_id",
    "limit": "j.max_attempts",
    "due": "j.due_at",
    "due_while_waiting": "case when j.role = 'waiting' then j.due_at end",
    "due_until_run": "case when j.role in ('ready', 'waiting') then j.due_at end",
    "owner": "j.lease_owner",
    "token": "case when j.role in ('leased', 'active') then j.lease_token end",
    "lease_expires": "j.lease_expires_at",
    "last_heartbeat": "j.last_heartbeat_at",
    "first_started": "j.first_started_at",
    "last_started": "j.started_at",
    "finished": "j.finished_at",
    "succeeded": "case when j.state in ({successes}) then j.finished_at end",
    "created": "j.created_at",
    "updated": "j.updated_at",
    "error": _ERROR,
    "final_error": f"case when ({_ERROR} ->> 'terminal')::boolean then {_ERROR} end",
    "error_ts": f"{_ERROR} -> 'ts'",
    "error_message": f"{_ERROR} ->> 'message'",
    "error_code": f"{_ERROR} ->> 'code'",
    "error_stack": f"{_ERROR} ->> 'stack'",
    "error_attempt": f"{_ERROR} -> 'attempt'",
    "error_limit": f"{_ERROR} -> 'max_attempts'",
    "error_terminal": f"{_ERROR} -> 'terminal'",
    "error_delay_ms": f"{_ERROR} -> 'delay_ms'",
    "error_due": f"{_ERROR} -> 'due_at'",
    "key": "j.idempotency_key",
    "trace": "coalesce(j.trace_id, tenure.made_id('trace', j.id))",
    "correlation": "coalesce(j.correlation_id, tenure.made_id('correlation', j.id))",
    "cancel_requested": "j.cancel_requested_at",
}


#: field → SQL, over a row e of tenure.event; name, payload and n are filled in for each event. Each reads
#: that row alone, so a query for the events of one job locks only the partition of that job.
EVENT: Mapping[str, str] = {
    **_same_name("e", "seq job_id ts trigger from_state to_state actor counter claims"),
    "id": "e.job_id || '-' || lpad(e.seq::text, 6, '0') || {n}",
    "name": "{name}",
    "payload": "{payload}",
    "job_id_text": "e.job_id::text",
    "ts_text": "tenure.iso(e.ts)",
    "transition": "e.from_state || '->' || e.to_state",
    "run": "e.job_id || ':' || e.claims",
    "limit": "e.max_attempts",
    "terminal": "coalesce((e.facts ->> 'terminal')::boolean, false)",
    "reason": "coalesce(e.reason, e.trigger)",
    "error": "jsonb_strip_nulls(jsonb_build_object('message', e.facts -> 'error' -> 'message', "
    "'code', e.facts -> 'error' -> 'code'))",
    "delay_ms": "e.facts -> 'delay_ms'",
    "due": "e.facts ->> 'due_at'",
    "correlation": "coalesce(e.correlation_id, tenure.made_id('correlation', e.job_id))",
    "trace": "coalesce(e.trace_id, tenure.made_id('trace', e.job_id))",
    # The cause is the row before; log rows that show as no event are skipped.
    "cause": "case when e.seq - coalesce(e.hidden, 0) > 1 "
    "then e.job_id || '-' || lpad((e.seq - coalesce(e.hidden, 0) - 1)::text, 6, '0') end",
    "version": "1",
}

#: field → SQL, over a row l of tenure.dead_letter.
LETTER: Mapping[str, str] = {
    **_same_name("l", "id job_id type stage counter claims last_owner payload status"),
    "tenant": "l.tenant_id",
    "reason": "l.reason_code",
    "error": "l.last_error",
    "error_class": "l.last_error ->> 'type'",
    "error_code": "coalesce(l.last_error ->> 'code', l.last_error ->> 'type')",
    "last_lease_expires": "l.last_lease_expires_at",
    "context": "jsonb_build_object('trace_id', l.trace_id, 'correlation_id', l.correlation_id, 'claims', l.claims, "
    "'counter', l.counter, 'error', l.last_error)",
    "correlation": "l.correlation_id",
    "trace": "l.trace_id",
    "failed": "l.failed_at",
    "created": "l.created_at",
    "updated": "l.updated_at",
}

#: field → SQL, over a row o of tenure.outbox.
OUTBOX: Mapping[str, str] = {
    **_same_name("o", "id job_id"),
    "body": "jsonb_build_object('task_id', o.job_id::text)",
    "created": "o.created_at",
    "published": "o.published_at",
}


def schema(contract: Contract) -> str:
    """The SQL schema that holds a contract's views."""
    return f"tenure_{contract.name}"


def view_statements(contract: Contract) -> Iterable[tuple[str, str]]:
    """(qualified name, SELECT) of each view of a contract."""
    for view in contract.views:
        yield f"{quoted(schema(contract))}.{quoted(view.name)}", _select(contract, view)


def _select(contract: Contract, view: View) -> str:
    of_contract = f"contract = {literal(contract.name)}"
    if view.rows == "letters":
        return f"select {_columns(view, LETTER)} from tenure.dead_letter l where l.{of_contract}"
    if view.rows == "outbox":
        return f"select {_columns(view, OUTBOX)} from tenure.outbox o where o.{of_contract}"
    if view.rows == "events":
        return "\nunion all ".join(
            f"select {_columns(view, _event_fields(contract, event, n))} from tenure.event e "
            f"where e.{of_contract} and {_emitted(contract, event)}"
            for n, event in enumerate(contract.events)
        )
    fields = {**JOB, "succeeded": JOB["succeeded"].format(successes=", ".join(map(literal, contract.successes())))}
    tables = ("job_done",) if view.rows == "finished" else ("job", "job_done")
    return "\nunion all ".join(
        f"select {_columns(view, fields)} from tenure.{table} j where j.{of_contract}" for table in tables
    )


def _columns(view: View, fields: Mapping[str, str]) -> str:
    shown = []
    for column, field in view.columns.items():
        expression = fields[field]
        if column in view.objects:
            keys = ", ".join(f"{literal(key)}, {fields[part]}" for key, part in view.objects[column].items())
            expression = f"case when {expression} is not null then jsonb_strip_nulls(jsonb_build_object({keys})) end"
        shown.append(f"{expression} as {quoted(column)}")
    return ", ".join(shown)


def _event_fields(contract: Contract, event: Event, n: int) -> dict[str, str]:
    # If one hop shows as two events, the second has an id of its own, in order.
    before = sum(bool(set(event.on) & set(other.on)) for other in contract.events[:n])
    fields = {
        **EVENT,
        "id": EVENT["id"].format(n=literal(f"-{before + 1}" if before else "")),
        "name": literal(event.name),
    }
    if contract.indexed_log:  # the log row stores them
        fields |= {"correlation": "e.correlation_id", "trace": "e.trace_id", "reason": "e.reason"}
    always = [key for key in event.keys if key not in event.optional]
    payload = _object(fields, event, always)
    if event.optional:
        payload += f" || jsonb_strip_nulls({_object(fields, event, event.optional)})"
    return {**fields, "payload": f"case when e.facts is not null then {payload} end" if event.fades else payload}


def _object(fields: Mapping[str, str], event: Event, keys: Iterable[str]) -> str:
    """These keys of an event with their values."""
    return f"jsonb_build_object({', '.join(f'{literal(key)}, {fields[event.keys[key]]}' for key in keys)})"


def _emitted(contract: Contract, event: Event) -> str:
    """The log rows that show as this event: `trigger` is its ordinary path, `trigger>state` the one chosen by type."""
    conditions = []
    for on in event.on:
        trigger, _, choice = on.partition(">")
        reached = [
            hop.state
            for path in contract.paths
            if path.trigger == trigger and path.choice == (choice or None)
            for hop in path.hops
        ]
        condition = f"e.trigger = {literal(trigger)}"
        if reached:
            condition += f" and e.to_state in ({', '.join(map(literal, dict.fromkeys(reached)))})"
        conditions.append(f"({condition})")
    shown = f"({' or '.join(conditions)})"
    if contract.indexed_log:
        shown = f"e.correlation_id is not null and e.type = {literal(event.name)} and {shown}"
    return shown


def quoted(name: str) -> str:
    """An identifier, quoted."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text constant, quoted."""
    return "'" + text.replace("'", "''") + "'"
