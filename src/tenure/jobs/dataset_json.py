"""Datasets as JSON: the same fields from the command line, from the dispatcher, and in what its clients read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from tenure.jobs.dataset import (
    Append,
    Dataset,
    DatasetEvent,
    Generation,
    Output,
    Pin,
    Pointer,
    Replace,
    RolledBack,
    StoredOutput,
    StoredPointer,
    Subscription,
    Switch,
    Switched,
)
from tenure.jobs.formats import ids_to_text
from tenure.jobs.job import DatasetUse

Fields = Mapping[str, Any]


def dataset_to_json(dataset: Dataset) -> dict[str, Any]:
    """A dataset."""
    return ids_to_text({**dataset._asdict(), "uuid": str(dataset.uuid)}, "id")


def dataset_from_json(fields: Fields) -> Dataset:
    """The dataset that `dataset_to_json` has written."""
    return Dataset(
        int(fields["id"]), UUID(fields["uuid"]), fields["name"], fields["tenant_id"], fields["current"],
        fields["newest"], fields["keep"], datetime.fromisoformat(fields["created_at"]), fields["created_by"],
    )  # fmt: skip


def generation_to_json(generation: Generation) -> dict[str, Any]:
    """A generation of a dataset."""
    fields = generation._asdict()
    del fields["shape_json"]
    fields |= {"dataset_uuid": str(generation.dataset_uuid), "shape": generation.shape}
    return ids_to_text(fields, "id", "flow_id")


def generation_from_json(fields: Fields) -> Generation:
    """The generation that `generation_to_json` has written."""
    shape, flow_id = fields["shape"], fields["flow_id"]
    return Generation(
        int(fields["id"]), fields["dataset"], UUID(fields["dataset_uuid"]), fields["tenant_id"], fields["number"],
        fields["is_current"], None if shape is None else json.dumps(shape), None if flow_id is None else int(flow_id),
        datetime.fromisoformat(fields["created_at"]), fields["created_by"], _time(fields["current_since"]),
        _time(fields["rolled_back_at"]), _time(fields["dropped_at"]),
    )  # fmt: skip


def pin_to_json(pin: Pin) -> dict[str, Any]:
    """A generation that a job reads or writes, without the job."""
    return {
        "mode": pin.mode, "dataset": pin.dataset, "dataset_uuid": str(pin.dataset_uuid), "generation": pin.generation,
        "generation_id": str(pin.generation_id),
    }  # fmt: skip


def pin_from_json(job_id: int, fields: Fields) -> Pin:
    """The pin of this job that `pin_to_json` has written."""
    return Pin(
        job_id, fields["mode"], fields["dataset"], UUID(fields["dataset_uuid"]), fields["generation"],
        int(fields["generation_id"]),
    )  # fmt: skip


def stored_output_to_json(output: StoredOutput) -> dict[str, Any]:
    """What a completion added to a dataset."""
    fields = output._asdict()
    return {"output_index": fields.pop("place"), **fields, "dataset_uuid": str(output.dataset_uuid)}


def stored_output_from_json(fields: Fields) -> StoredOutput:
    """What `stored_output_to_json` has written."""
    return StoredOutput(
        fields["output_index"], fields["kind"], fields["dataset"], UUID(fields["dataset_uuid"]), fields["generation"],
        fields["scope"], fields["location"], fields["cursor"], fields["row_count"], fields["given"],
        datetime.fromisoformat(fields["at"]),
    )  # fmt: skip


def pointer_to_json(pointer: StoredPointer) -> dict[str, Any]:
    """Where the data of a scope is kept."""
    return ids_to_text(pointer._asdict(), "job_id")


def pointer_from_json(fields: Fields) -> StoredPointer:
    """The pointer that `pointer_to_json` has written."""
    job_id = fields["job_id"]
    return StoredPointer(
        fields["scope"], fields["location"], fields["cursor"], fields["row_count"],
        None if job_id is None else int(job_id), datetime.fromisoformat(fields["at"]),
    )  # fmt: skip


def row_text(value: Any) -> str:
    """A row as JSON text."""
    return json.dumps(value, ensure_ascii=False)


def switch_to_json(switch: Switch) -> dict[str, Any]:
    """A cutover or a rollback."""
    fields = ids_to_text(switch._asdict(), "id", "undoes")
    return {**fields, "datasets": [one._asdict() for one in switch.datasets]}


def switch_from_json(fields: Fields) -> Switch:
    """The switch that `switch_to_json` has written."""
    undoes = fields["undoes"]
    return Switch(
        int(fields["id"]), fields["kind"], fields["tenant_id"], datetime.fromisoformat(fields["at"]), fields["actor"],
        fields["reason"], None if undoes is None else int(undoes),
        tuple(Switched(one["dataset"], one["before"], one["after"]) for one in fields["datasets"]),
    )  # fmt: skip


def rolled_back_to_json(done: RolledBack) -> dict[str, Any]:
    """What a rollback did."""
    return {
        "switch": switch_to_json(done.switch),
        "cancelled": [str(job_id) for job_id in done.cancelled],
        "left": {str(job_id): why for job_id, why in done.left.items()},
    }


def rolled_back_from_json(fields: Fields) -> RolledBack:
    """What `rolled_back_to_json` has written."""
    left = {int(job_id): why for job_id, why in fields["left"].items()}
    return RolledBack(switch_from_json(fields["switch"]), tuple(map(int, fields["cancelled"])), left)


def subscription_to_json(subscription: Subscription) -> dict[str, Any]:
    """A task that runs for each event of a dataset."""
    return ids_to_text(subscription._asdict(), "id")


def subscription_from_json(fields: Fields) -> Subscription:
    """The subscription that `subscription_to_json` has written."""
    return Subscription(
        int(fields["id"]), fields["dataset"], fields["tenant_id"], fields["contract"], fields["type"],
        fields["argument"], fields["application"], datetime.fromisoformat(fields["created_at"]), fields["waiting"],
        fields["last_error"],
    )  # fmt: skip


def output_to_json(output: Output) -> dict[str, Any]:
    """An output of a completion, as a holder sends it; fields that are not set are left out."""
    fields: dict[str, Any] = {"kind": _KINDS[type(output)], "dataset": output.dataset}
    if isinstance(output, Pointer):
        given = {name: getattr(output, name) for name in ("location", "scope", "cursor", "row_count")}
        return {**fields, **{name: value for name, value in given.items() if value is not None}}
    if isinstance(output, Replace):
        fields["scope"] = output.scope
    if output.staged is not None:
        return {**fields, "staged": str(output.staged)}
    fields["rows"] = list(output.rows)
    return fields if output.keys is None else {**fields, "keys": list(output.keys)}


def use_to_json(use: DatasetUse) -> dict[str, Any]:
    """A dataset that a job reads or writes; what is not given is left out."""
    shape = {} if use.shape_json is None else {"shape": json.loads(use.shape_json)}
    return {"dataset": use.name, **({} if use.generation is None else {"generation": use.generation}), **shape}


def use_from_json(fields: Fields) -> DatasetUse:
    """The use that `use_to_json` has written."""
    shape = fields.get("shape")
    return DatasetUse(fields["dataset"], fields.get("generation"), None if shape is None else json.dumps(shape))


def event_to_json(event: DatasetEvent) -> dict[str, Any]:
    """An event of a completion, as a holder sends it."""
    name = "dataset_uuid" if isinstance(event.dataset, UUID) else "dataset"
    version = {} if event.generation is None else {"dataset_version": event.generation}
    return {name: str(event.dataset), **version, **event.input()}


_KINDS = {Append: "append", Replace: "replace", Pointer: "pointer"}


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
