"""The datasets that a job reads or writes, as requests name them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field, StrictInt, StrictStr

from tenure.http.models import fields
from tenure.http.models.fields import RequestBody, described, optional
from tenure.jobs import validation
from tenure.jobs.job import DatasetUse

DatasetName = Annotated[StrictStr, fields.text("dataset", examples=["prices"])]
GenerationNumber = Annotated[StrictInt, Field(ge=1, le=validation.MAX_ID), fields.AS_WHOLE]


class UsedDataset(RequestBody):
    """A dataset that a job reads or writes."""

    dataset: DatasetName = described("The dataset's name.")
    generation: GenerationNumber | None = optional("Its generation; default the current one, or that of its flow.")
    shape: Any = optional("Of a written one: the newest generation of this shape is meant; default any shape.")


Uses = Annotated[list[UsedDataset], Field(max_length=100)]


def dataset_uses(used: Iterable[UsedDataset] | None) -> tuple[DatasetUse, ...]:
    """The uses that a request names."""
    return tuple(DatasetUse(one.dataset, one.generation, _shape(one.shape)) for one in used or ())


def _shape(shape: Any) -> str | None:
    return None if shape is None else validation.to_json("shape", shape, validation.MAX_SHAPE_BYTES)
