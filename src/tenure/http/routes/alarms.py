"""Routes for alarms: list them, mute and unmute them, test their sinks."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StrictStr

from tenure.http.application import ApiRequest
from tenure.http.error_response import Forbidden
from tenure.http.models import fields
from tenure.http.models.fields import RequestBody, described, optional
from tenure.jobs.validation import LENGTHS


class Alarm(BaseModel):
    """An alarm that has fired."""

    id: fields.Id = described("The alarm's id.", examples=["7"])
    kind: str = described("The kind of condition, as in the reference.", examples=["retrying-share"])
    tenant_id: str | None = described("The tenant that it is about; null: no single one.", examples=["acme"])
    subject: str | None = described(
        "What it is about: a queue, a type, a process; null: nothing in particular.", examples=["gate_b2"]
    )
    severity: Literal["P1", "P2", "P3"] = described("How urgent it is.")
    since: datetime = described("Since when the condition holds.")
    fired_at: datetime = described("When it had held for long enough.")
    seen_at: datetime = described("When it was last seen.")
    cleared_at: datetime | None = described("When it was over; null: it still holds.")
    value: float = described("The measured value.", examples=[0.4])
    threshold: float = described("The threshold.", examples=[0.2])
    summary: str = described(
        "What is the matter, for people.", examples=["5 of 20 live gate_b2 jobs of tenant acme wait for a retry (25%)"]
    )
    next: str = described("The next command.", examples=["tenure jobs list"])
    details: dict[str, Any] = described(
        "The same for programs; the fields depend on the kind.", examples=[{"live": 20}]
    )
    muted_by: str | None = described("Who has muted it; null: it is not muted.", examples=["ann"])
    muted_until: datetime | None = described("Until when it is muted.")
    mute_reason: str | None = described("Why it is muted.", examples=["a release"])


class AlarmList(BaseModel):
    """Alarms: those that hold first."""

    alarms: list[Alarm] = described("The alarms.")


class AlarmQuery(BaseModel):
    """Which alarms are listed."""

    history: Annotated[bool, described("Also those that are over; default false.")] = False
    kind: str | None = optional("Only this kind.", max_length=100)
    tenant_id: str | None = optional("Only this tenant; default the key's, or all.", max_length=LENGTHS["tenant_id"])
    limit: Annotated[int, described("How many; default 100.", ge=1, le=1_000)] = 100


class UnmuteAlarms(RequestBody):
    """A person ends mutes."""

    kind: Annotated[StrictStr, Field(min_length=1, max_length=100)] | None = optional("Of this kind; default: any.")
    tenant_id: Annotated[StrictStr, fields.text("tenant_id")] | None = optional("Of this tenant; default the key's.")
    subject: Annotated[StrictStr, Field(min_length=1, max_length=300)] | None = optional("About this; default: any.")
    person: fields.Person | None = optional(
        "Who mutes: the key's person, or its name; give it only while no key exists."
    )


class MuteAlarms(UnmuteAlarms):
    """A person mutes alarms for some time."""

    seconds: Annotated[fields.Seconds, described("For how long; 1 s to 366 days.", examples=[3600])]
    reason: fields.Reason | None = optional("Why; default no reason.")


class AlarmsMuted(BaseModel):
    """A mute."""

    id: fields.Id = described("The mute's id.", examples=["3"])
    until: datetime = described("Until when nothing is sent.")
    muted_by: str = described("Who muted.", examples=["ann"])


class AlarmsUnmuted(BaseModel):
    """Mutes that were ended."""

    ended: int = described("How many mutes were ended.")


class AlarmTested(BaseModel):
    """A test alarm."""

    fired: bool = described("Whether it fired now; false: one holds already.")


def _person(request: ApiRequest, named: str | None) -> str:
    """Who mutes: the key's person, or the key where it names none. Only while no key exists may the caller say who."""
    who = request.caller
    if who.may_name_person:
        return named or who.actor
    if named not in (None, who.person):
        raise Forbidden(f"this key is {who.actor}'s, and cannot mute for {named!r}. Next: leave person out")
    return who.actor


async def list_alarms(request: ApiRequest, query: AlarmQuery) -> dict[str, Any]:
    """The alarms that hold; a key that is bound to a tenant sees its tenant's alone."""
    tenant = request.caller.resolve_tenant(query.tenant_id)
    found = await request.calls.store.alarms.list(
        history=query.history, tenant=tenant, kind=query.kind, limit=query.limit
    )
    return {"alarms": [one.to_json() for one in found]}


async def mute_alarms(request: ApiRequest, body: MuteAlarms) -> dict[str, Any]:
    """Send nothing about these alarms for some time; the person is named. Of a tenant's key: its tenant's alone."""
    person, tenant = _person(request, body.person), request.caller.resolve_tenant(body.tenant_id)
    muted = await request.calls.store.alarms.mute(
        body.kind, seconds=body.seconds, actor=person, tenant=tenant, subject=body.subject, reason=body.reason
    )
    return {"id": str(muted.id), "until": muted.until, "muted_by": person}


async def unmute_alarms(request: ApiRequest, body: UnmuteAlarms) -> dict[str, Any]:
    """End mutes of exactly this kind, tenant and subject before their time."""
    person, tenant = _person(request, body.person), request.caller.resolve_tenant(body.tenant_id)
    ended = await request.calls.store.alarms.unmute(body.kind, actor=person, tenant=tenant, subject=body.subject)
    return {"ended": ended}


async def test_alarms(request: ApiRequest) -> dict[str, Any]:
    """Fire a test alarm, which upkeep sends to every sink; the key must not be bound to a tenant."""
    request.caller.require_all_tenants()
    return {"fired": bool(await request.calls.store.alarms.test(request.caller.actor))}
