"""Responses of the health probes."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, RootModel

from tenure.http.models.errors import Refusal
from tenure.http.models.fields import described


class Healthy(BaseModel):
    """The dispatcher is healthy."""

    status: Literal["ok"] = described("It is healthy.")


class Stopping(BaseModel):
    """The dispatcher is stopping."""

    status: Literal["stopping"] = described("It is stopping.")


class NotReady(RootModel[Stopping | Refusal]):
    """The dispatcher is stopping, or its database is unavailable."""
