"""Each contract's relations in its document's own words, generated from the declaration.

A view reads live and finished rows alike, runs with the reader's rights, and costs a move nothing. Events are
projections too: a hop may show as one event, two, or none, each with exactly the keys its document names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tenure.contract import Contract, Event, View

_ERROR = "j.last_error"

#: field → SQL, over a row j of tenure.job or tenure.job_done.
JOB: Mapping[str, str] = {
    "id": "j.id",
    "queue": "j.queue",
    "type": "j.type",
    "tenant": "j.tenant_id",
    "state": "j.state",
    "counter": "j.counter",
    "claims": "j.claims",
    "limit": "j.max_attempts",
    "priority": "j.priority",
    "payload": "j.payload",
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
    "result": "j.result",
    "key": "j.idempotency_key",
    "trace": "coalesce(j.trace_id, tenure.made_id('trace', j.id))",
    "correlation": "coalesce(j.correlation_id, tenure.made_id('correlation', j.id))",
    "origin_letter": "j.origin_letter",
    "cancel_requested": "j.cancel_requested_at",
    "progress": "j.progress",
    "checkpoint": "j.checkpoint",
}


def _of_job(column: str) -> str:
    """An id that the job's row has, whether it is live or finished."""
    given = " union all ".join(
        f"select {column}_id from tenure.{table} where id = e.job_id" for table in ("job", "job_done")
    )
    return f"coalesce(e.{column}_id, ({given}), tenure.made_id('{column}', e.job_id))"


#: field → SQL, over a row e of tenure.event; name, payload and n are the event's own.
EVENT: Mapping[str, str] = {
    "id": "e.job_id || '-' || lpad(e.seq::text, 6, '0') || {n}",
    "name": "{name}",
    "payload": "{payload}",
    "seq": "e.seq",
    "job_id": "e.job_id",
    "job_id_text": "e.job_id::text",
    "ts": "e.ts",
    "ts_text": "tenure.iso(e.ts)",
    "trigger": "e.trigger",
    "from_state": "e.from_state",
    "to_state": "e.to_state",
    "transition": "e.from_state || '->' || e.to_state",
    "run": "e.job_id || ':' || e.claims",
    "actor": "e.actor",
    "counter": "e.counter",
    "claims": "e.claims",
    "limit": "e.max_attempts",
    "terminal": "coalesce((e.facts ->> 'terminal')::boolean, false)",
    "reason": "coalesce(e.reason, e.trigger)",
    "error": "jsonb_strip_nulls(jsonb_build_object('message', e.facts -> 'error' -> 'message', "
    "'code', e.facts -> 'error' -> 'code'))",
    "delay_ms": "e.facts -> 'delay_ms'",
    "due": "e.facts ->> 'due_at'",
    "correlation": _of_job("correlation"),
    "trace": _of_job("trace"),
    "cause": "(select p.job_id || '-' || lpad(p.seq::text, 6, '0') from tenure.event p "
    "where p.job_id = e.job_id and p.seq < e.seq and {shown} order by p.seq desc limit 1)",
    "version": "1",
}

#: field → SQL, over a row l of tenure.dead_letter.
LETTER: Mapping[str, str] = {
    "id": "l.id",
    "job_id": "l.job_id",
    "tenant": "l.tenant_id",
    "type": "l.type",
    "reason": "l.reason_code",
    "stage": "l.stage",
    "error": "l.last_error",
    "error_class": "l.last_error ->> 'type'",
    "error_code": "l.last_error ->> 'code'",
    "counter": "l.counter",
    "claims": "l.claims",
    "last_owner": "l.last_owner",
    "last_lease_expires": "l.last_lease_expires_at",
    "payload": "l.payload",
    "context": "jsonb_build_object('trace_id', l.trace_id, 'correlation_id', l.correlation_id, 'claims', l.claims, "
    "'counter', l.counter, 'error', l.last_error)",
    "correlation": "l.correlation_id",
    "trace": "l.trace_id",
    "status": "l.status",
    "failed": "l.failed_at",
    "created": "l.created_at",
    "updated": "l.updated_at",
}

#: field → SQL, over a row o of tenure.outbox.
OUTBOX: Mapping[str, str] = {
    "id": "o.id",
    "job_id": "o.job_id",
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
    own = f"contract = {literal(contract.name)}"
    if view.rows == "letters":
        return f"select {_columns(view, LETTER)} from tenure.dead_letter l where l.{own}"
    if view.rows == "outbox":
        return f"select {_columns(view, OUTBOX)} from tenure.outbox o where o.{own}"
    if view.rows == "events":
        return "\nunion all ".join(
            f"select {_columns(view, _event_fields(contract, event, n))} from tenure.event e "
            f"where e.{own} and {_emitted(contract, event)}"
            for n, event in enumerate(contract.events)
        )
    fields = {**JOB, "succeeded": JOB["succeeded"].format(successes=", ".join(map(literal, contract.successes())))}
    tables = ("job_done",) if view.rows == "finished" else ("job", "job_done")
    return "\nunion all ".join(
        f"select {_columns(view, fields)} from tenure.{table} j where j.{own}" for table in tables
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
    # Where one hop shows as two events, the second has an id of its own, in order.
    before = sum(bool(set(event.on) & set(other.on)) for other in contract.events[:n])
    fields = {
        **EVENT,
        "id": EVENT["id"].format(n=literal(f"-{before + 1}" if before else "")),
        "name": literal(event.name),
    }
    if contract.indexed_log:  # the log row has them itself: shown as stored
        fields |= {"correlation": "e.correlation_id", "trace": "e.trace_id", "reason": "e.reason"}
        shown = "p.type is not null"
    else:
        shown = f"({' or '.join(_emitted(contract, other, 'p') for other in contract.events)})"
    # A log row that shows as no event is no cause.
    fields["cause"] = EVENT["cause"].format(shown=shown)
    always = [key for key in event.keys if key not in event.optional]
    payload = _object(fields, event, always)
    if event.optional:
        payload += f" || jsonb_strip_nulls({_object(fields, event, event.optional)})"
    return {**fields, "payload": f"case when e.facts is not null then {payload} end" if event.fades else payload}


def _object(fields: Mapping[str, str], event: Event, keys: Iterable[str]) -> str:
    """These keys of an event with their values."""
    return f"jsonb_build_object({', '.join(f'{literal(key)}, {fields[event.keys[key]]}' for key in keys)})"


def _emitted(contract: Contract, event: Event, row: str = "e") -> str:
    """Which log rows show as this event: a trigger means its ordinary path, `trigger>state` the one chosen by type."""
    conditions = []
    for on in event.on:
        trigger, _, choice = on.partition(">")
        reached = [
            hop.state
            for path in contract.paths
            if path.trigger == trigger and path.choice == (choice or None)
            for hop in path.hops
        ]
        condition = f"{row}.trigger = {literal(trigger)}"
        if reached:
            condition += f" and {row}.to_state in ({', '.join(map(literal, dict.fromkeys(reached)))})"
        conditions.append(f"({condition})")
    shown = f"({' or '.join(conditions)})"
    if contract.indexed_log:
        shown = f"{row}.correlation_id is not null and {row}.type = {literal(event.name)} and {shown}"
    return shown


def quoted(name: str) -> str:
    """An identifier, quoted."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text constant, quoted."""
    return "'" + text.replace("'", "''") + "'"
