"""Answers to those who look whether the dispatcher is well."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field, RootModel

from tenure.http.models.fields import either, shown
from tenure.http.models.refusal import Refusal

_AWAY: dict[str, Any] = {
    "error": {
        "code": "E-CANNOT-CONNECT", "message": "the database did not answer within 1 s", "retryable": True,
        "hint": "try again",
    },
    "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
}  # fmt: skip


class Well(BaseModel):
    """The dispatcher is well."""

    model_config = shown(status="ok")
    status: Literal["ok"] = Field(description="It is well.")


class Stopping(BaseModel):
    """The dispatcher is about to stop."""

    model_config = shown(status="stopping")
    status: Literal["stopping"] = Field(description="It is about to stop.")


class NotReady(RootModel[Stopping | Refusal]):
    """The dispatcher is about to stop, or its database is away."""

    model_config = either({"status": "stopping"}, _AWAY)
