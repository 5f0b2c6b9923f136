"""Requests and responses of the routes for datasets, and what other routes say about datasets."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, Field, StrictInt, StrictStr

from tenure.errors import BadInput
from tenure.http.models import fields
from tenure.http.models.dataset_uses import DatasetName as Name
from tenure.http.models.dataset_uses import GenerationNumber as Number
from tenure.http.models.fields import DIGITS, MAX_ITEMS, RequestBody, described, optional
from tenure.http.models.schedules import ScheduledJob
from tenure.jobs import validation
from tenure.jobs.dataset import (
    MAX_COUNT,
    MAX_KEEP,
    MAX_SET,
    MAX_STAGED,
    WHOLE,
    Append,
    DatasetEvent,
    Output,
    Pointer,
    Replace,
    row_keys,
)

#: The most rows in one request; more are staged in several.
_MAX_ROWS = 100_000

Scope = Annotated[StrictStr, fields.text("scope", examples=["2026-11"])]
Key = Annotated[StrictStr, fields.text("row key", examples=["EUR"])]
Rows = Annotated[list[Any], Field(max_length=_MAX_ROWS)]
Keys = Annotated[list[Key], Field(max_length=_MAX_ROWS)]
_Tenant = Annotated[str | None, fields.text("tenant_id"), described("The tenant; default the key's, or default.")]
_CursorValue = Annotated[StrictStr, fields.text("cursor")]
_Whole = Annotated[StrictInt, Field(ge=-MAX_COUNT, le=MAX_COUNT)]
#: Generations have shapes of up to 64 KiB, and switches up to 1,000 datasets.
_FewLimit = Annotated[int, described("The largest number of items.", ge=1, le=100)]


class DatasetOutput(RequestBody):
    """An output to a dataset that the job writes. Only the fields of its kind may be set."""

    kind: Literal["append", "replace", "pointer"] = described("What it does.")
    dataset: Name = described("The dataset's name.")
    scope: Scope | None = optional("With replace (required) and pointer: what is replaced, as a partition or a range.")
    rows: Rows | None = optional("With append and replace: the rows, any JSON.", examples=[[{"id": "EUR", "v": 1}]])
    keys: Keys | None = optional("The unique key of each row, from its input; of a replace default its place.")
    unique_key: Annotated[list[Key], Field(min_length=1, max_length=100)] | None = optional(
        "In place of keys: the fields that make each row unique.", examples=[["id"]]
    )
    staged: fields.Id | None = optional("In place of rows: the number of rows that this attempt has staged.")
    location: Annotated[StrictStr, fields.text("location")] | None = optional("With pointer: where the data is kept.")
    cursor: _CursorValue | None = optional("With pointer: how far the data goes.")
    row_count: Annotated[StrictInt, Field(ge=0, le=MAX_COUNT), fields.AS_WHOLE] | None = optional(
        "With pointer: how many rows the data has."
    )

    def output(self) -> Output:
        """The output that it describes; refuses a field that its kind does not have."""
        allowed = _FIELDS[self.kind]
        given = {name for name in _FIELDS_OF_ANY if getattr(self, name) is not None}
        if wrong := sorted(given - allowed):
            raise BadInput(f"an output of the kind {self.kind} takes no {wrong[0]}. Next: leave it out")
        if self.kind == "pointer":
            if self.location is None:
                raise BadInput("an output of the kind pointer says where the data is kept. Next: give location")
            return Pointer(self.dataset, self.location, self.cursor, self.row_count, self.scope or WHOLE)
        rows, keys = self.rows or [], self.keys
        staged = None if self.staged is None else _staged_number(self.staged)
        if self.unique_key is not None:
            if keys is not None:
                raise BadInput("keys and unique_key both say the keys of the rows. Next: give one of them")
            keys = row_keys(rows, self.unique_key)
        if self.kind == "append":
            return Append(self.dataset, rows, keys or [], staged)
        if self.scope is None:
            raise BadInput("an output of the kind replace says what it replaces. Next: give scope")
        return Replace(self.dataset, self.scope, rows, keys, staged)


_FIELDS = {
    "append": {"rows", "keys", "unique_key", "staged"},
    "replace": {"scope", "rows", "keys", "unique_key", "staged"},
    "pointer": {"scope", "location", "cursor", "row_count"},
}
_FIELDS_OF_ANY = set().union(*_FIELDS.values())


def _staged_number(text: str) -> int:
    return validation.check_integer("staged", int(text), 1, validation.MAX_ID)


class DatasetEventBody(RequestBody):
    """An event: this input of a dataset is done. It has a cursor or a partition_key."""

    dataset: Name | None = optional("The dataset's name.", examples=["prices"])
    dataset_uuid: fields.Uuid | None = optional("In place of its name: the dataset's UUID.")
    dataset_version: Number | None = optional("The generation; default the one that the job writes.")
    cursor: _CursorValue | _Whole | None = optional("How far the input goes.", examples=["2026-11-19"])
    partition_key: Annotated[StrictStr, fields.text("partition_key")] | None = optional("Which partition it is.")
    start: _CursorValue | _Whole | None = optional("Where the input begins; only with end.")
    end: _CursorValue | _Whole | None = optional("Where the input ends; only with start.")

    def event(self) -> DatasetEvent:
        """The event that it describes."""
        if (self.dataset is None) == (self.dataset_uuid is None):
            raise BadInput("an event of a dataset has its name or its UUID. Next: give one of dataset and dataset_uuid")
        name: str | UUID = UUID(self.dataset_uuid) if self.dataset_uuid is not None else self.dataset or ""
        return DatasetEvent(name, self.dataset_version, self.cursor, self.partition_key, self.start, self.end)


Outputs = Annotated[list[DatasetOutput], Field(max_length=MAX_ITEMS)]
Events = Annotated[list[DatasetEventBody], Field(max_length=MAX_ITEMS)]


class DeclareDataset(RequestBody):
    """A dataset of an application's code."""

    tenant_id: fields.Tenant | None = optional("Its tenant; default the key's, or default.")
    shape: Any = optional("What its rows look like, any JSON; a changed shape is a new generation.")
    keep: Annotated[StrictInt, Field(ge=0, le=MAX_KEEP), fields.AS_WHOLE] | None = optional(
        "How many former generations stay beside the current one; default all.", examples=[2]
    )


class NewGeneration(RequestBody):
    """A new, empty generation of the newest one's shape."""

    tenant_id: fields.Tenant | None = optional("The dataset's tenant; default the key's, or default.")


class CurrentSet(RequestBody):
    """Datasets whose current generations are read in one snapshot."""

    datasets: Annotated[list[Name], Field(min_length=1, max_length=MAX_SET)] = described("The datasets' names.")
    tenant_id: fields.Tenant | None = optional("Their tenant; default the key's, or default.")


class Cutover(RequestBody):
    """Generations that become current together."""

    generations: Annotated[dict[Name, Number], Field(min_length=1, max_length=MAX_SET)] = described(
        "The number of the generation that becomes current, by dataset.", examples=[{"prices": 2, "rates": 5}]
    )
    reason: fields.Reason | None = optional("Why, for the log.")
    tenant_id: fields.Tenant | None = optional("Their tenant; default the key's, or default.")


class Rollback(RequestBody):
    """Datasets whose last cutover is undone, with its whole set."""

    datasets: Annotated[list[Name], Field(min_length=1, max_length=MAX_SET)] = described("The datasets' names.")
    reason: fields.Reason | None = optional("Why, for the log.")
    tenant_id: fields.Tenant | None = optional("Their tenant; default the key's, or default.")


class SubscribedJob(ScheduledJob):
    """The job of each event; its key is made of the event."""

    payload: Any = described("The other arguments, an object; default none.", default={})


class SubscribedTask(RequestBody):
    """A task that runs for each event of a dataset."""

    dataset: Name = described("The dataset's name.")
    argument: fields.Type = described("The argument that takes the event; default event.", default="event")
    job: SubscribedJob = described("What is enqueued for each event.")


class Subscribe(RequestBody):
    """Tasks that run for each event of datasets; all of them are stored, or none."""

    subscriptions: Annotated[list[SubscribedTask], Field(max_length=MAX_ITEMS)] = described("The tasks.")
    application: fields.Application | None = optional("Their application; default none.")


class Unsubscribe(RequestBody):
    """A subscription to end."""

    dataset: Name = described("The dataset's name.")
    type: fields.Type = described("The task's type.")
    contract: fields.Contract = described("The contract of its jobs; default standard.", default="standard")
    tenant_id: fields.Tenant | None = optional("The dataset's tenant; default the key's, or default.")


class Stage(RequestBody):
    """Rows that an output of the completion refers to; nobody reads them before."""

    claims: fields.Count = described("How often the job was claimed, as the claim answered.", examples=[1])
    lease_token: fields.Token = described("The lease token, as the claim answered.")
    dataset: Name = described("The dataset's name.")
    rows: Rows = described("The rows, any JSON.", examples=[[{"id": "EUR", "v": 1}]])
    keys: Keys | None = optional("The unique key of each row; an append needs them. All parts have keys, or none.")
    staged: fields.Id | None = optional("The number of an earlier answer, to add more rows.")
    first: Annotated[StrictInt, Field(ge=0, le=MAX_STAGED), fields.AS_WHOLE] | None = optional(
        "Without keys, the place of the first of these rows: a repeat then adds nothing.", examples=[0]
    )


class DatasetQuery(BaseModel):
    """Of which tenant."""

    tenant_id: _Tenant = None


class DatasetListQuery(DatasetQuery):
    """A page of datasets."""

    tenant_id: Annotated[str | None, fields.text("tenant_id"), described("Only this tenant's.")] = None
    limit: fields.Limit = 100
    cursor: fields.Cursor = None


class GenerationListQuery(DatasetQuery):
    """A page of generations, or one of them."""

    number: Annotated[int | None, described("Only this one.", ge=1, le=validation.MAX_ID)] = None
    limit: _FewLimit = 50
    cursor: fields.Cursor = None


class FlowQuery(BaseModel):
    """Of which flow."""

    flow_id: Annotated[str, described("The flow whose own generations are listed.", pattern=DIGITS)]


class RowQuery(BaseModel):
    """A page of rows."""

    scope: Annotated[str | None, described("Only this scope; empty: the appended rows.", max_length=200)] = None
    limit: fields.Limit = 1_000
    after: Annotated[str | None, described("Where an earlier page ended: its `next`.", max_length=2_000)] = None


class PointerQuery(BaseModel):
    """A page of pointers."""

    limit: fields.Limit = 1_000
    after: Annotated[str | None, fields.text("scope"), described("Where an earlier page ended: its `next`.")] = None


class SwitchQuery(DatasetQuery):
    """A page of cutovers and rollbacks."""

    dataset: Annotated[str | None, fields.text("dataset"), described("Only this dataset's.")] = None
    limit: _FewLimit = 50
    cursor: fields.Cursor = None


class SubscriptionQuery(BaseModel):
    """Which subscriptions."""

    dataset: Annotated[str | None, fields.text("dataset"), described("Only this dataset's.")] = None
    tenant_id: Annotated[str | None, fields.text("tenant_id"), described("Only this tenant's.")] = None


class Dataset(BaseModel):
    """A dataset now."""

    id: fields.Id = described("Its id.", examples=["3"])
    uuid: UUID = described("Its UUID, as events name it.")
    name: str = described("Its name, unique in its tenant.", examples=["prices"])
    tenant_id: fields.TenantId
    current: int = described("The number of the current generation.")
    newest: int = described("The number of the newest generation.", examples=[2])
    keep: int | None = described("How many former generations stay; null: all of them.")
    created_at: datetime = described("When it was declared first.")
    created_by: str | None = described("Who declared it first.", examples=["ann"])


class Generation(BaseModel):
    """A generation of a dataset now."""

    id: fields.Id = described("Its id.", examples=["17"])
    dataset: str = described("The dataset's name.", examples=["prices"])
    dataset_uuid: UUID = described("The dataset's UUID.")
    tenant_id: fields.TenantId
    number: int = described("Its number (`dataset_version`), from 1.", examples=[2])
    is_current: bool = described("Whether it is the current one.", examples=[True])
    shape: Any = described("What its rows look like; null: not declared.", examples=[{"id": "str", "v": "float"}])
    flow_id: fields.Id | None = described("The flow that writes it; null: none.")
    created_at: datetime = described("When it was made.")
    created_by: str | None = described("Who made it.", examples=["ann"])
    current_since: datetime | None = described("When it last became current; null: never.")
    rolled_back_at: datetime | None = described("When it was rolled back: it never becomes current again; null: never.")
    dropped_at: datetime | None = described("When it was dropped: its rows leave; null: it was not.")


class DatasetPage(BaseModel):
    """Datasets by tenant and name."""

    datasets: list[Dataset] = described("The datasets of this page.")
    next: str | None = described("The cursor of the next page; null: this is the last page.")


class GenerationPage(BaseModel):
    """Generations of a dataset, the newest first."""

    generations: list[Generation] = described("The generations of this page.")
    next: str | None = described("The cursor of the next page; null: this is the last page.")


class GenerationSet(BaseModel):
    """Generations of several datasets, as they were at one moment."""

    generations: list[Generation] = described("The generations.")


class Row(BaseModel):
    """A row of a dataset."""

    scope: str = described("Its scope; empty: it was appended.", examples=["2026-11"])
    key: str = described("Its unique key, or its place in its scope.", examples=["EUR"])
    value: Any = described("The row.", examples=[{"id": "EUR", "v": 1}])


class RowPage(BaseModel):
    """Rows of a generation, by scope and key."""

    rows: list[Row] = described("The rows of this page.")
    next: str | None = described("Send it as `after` to get the next page; null: this is the last page.")


class ScopePointer(BaseModel):
    """Where the data of a scope is kept."""

    scope: str = described("The scope.", examples=["all"])
    location: str = described("Where its data is kept.", examples=["s3://bucket/prices/2026-11"])
    cursor: str | None = described("How far the data goes.")
    row_count: int | None = described("How many rows the data has.", examples=[17])
    job_id: fields.Id | None = described("The job whose completion wrote it.")
    at: datetime = described("When it was written.")


class PointerPage(BaseModel):
    """Pointers of a generation, by scope."""

    pointers: list[ScopePointer] = described("The pointers of this page.")
    next: str | None = described("Send it as `after` to get the next page; null: this is the last page.")


class SwitchedDataset(BaseModel):
    """A dataset whose current generation was changed."""

    dataset: str = described("The dataset's name.", examples=["prices"])
    before: int = described("The generation that was current before.", examples=[1])
    after: int = described("The generation that is current after.", examples=[2])


class Switch(BaseModel):
    """A cutover or a rollback."""

    id: fields.Id = described("Its id.", examples=["9"])
    kind: Literal["cutover", "rollback"] = described("What it was.")
    tenant_id: fields.TenantId
    at: datetime = described("When it was made.")
    actor: str = described("Who made it.", examples=["ann"])
    reason: str | None = described("Why it was made.", examples=["the new feed"])
    undoes: fields.Id | None = described("Of a rollback: the cutover that it undid.")
    datasets: list[SwitchedDataset] = described("The datasets, by name.")


class SwitchPage(BaseModel):
    """Cutovers and rollbacks, the newest first."""

    switches: list[Switch] = described("The switches of this page.")
    next: str | None = described("The cursor of the next page; null: this is the last page.")


class RolledBackSet(BaseModel):
    """What a rollback did."""

    switch: Switch = described("The rollback.")
    cancelled: list[fields.Id] = described("The jobs that waited to write to what was rolled back.", examples=[["42"]])
    left: dict[str, str] = described("Job and why it goes on, of those that could not be cancelled.", examples=[{}])


class Subscription(BaseModel):
    """A task that runs for each event of a dataset."""

    id: fields.Id = described("Its id.", examples=["5"])
    dataset: str = described("The dataset's name.", examples=["prices"])
    tenant_id: fields.TenantId
    contract: fields.ContractName
    type: fields.TypeName
    argument: str = described("The argument that takes the event.", examples=["event"])
    application: str | None = described("Its application.", examples=["shop"])
    created_at: datetime = described("When it was stored first.")
    waiting: int = described("How many events wait to become its jobs; at most 10000 are counted.", examples=[0])
    last_error: str | None = described("Why the last events could not become jobs; null: they could.")


class SubscriptionList(BaseModel):
    """Subscriptions."""

    subscriptions: list[Subscription] = described("The subscriptions by dataset and type; at most 1000.")


class Subscribed(BaseModel):
    """Subscriptions that were stored."""

    ids: list[fields.Id] = described("Their ids, in order.", examples=[["5"]])


class Unsubscribed(BaseModel):
    """Whether a subscription was ended."""

    ended: bool = described("Whether there was one.", examples=[True])


class DatasetDetails(Dataset):
    """A dataset with its newest generations and the tasks that run for its events."""

    generations: list[Generation] = described("Its 20 newest generations.")
    subscriptions: list[Subscription] = described("The tasks that run for its events.")


class Pin(BaseModel):
    """A generation that a job reads or writes, fixed when the job was made."""

    mode: Literal["read", "write"] = described("Whether the job reads or writes it.")
    dataset: str = described("The dataset's name.", examples=["prices"])
    dataset_uuid: UUID = described("The dataset's UUID.")
    generation: int = described("The generation's number (`dataset_version`).", examples=[2])
    generation_id: fields.Id = described("The generation's id, by which its rows are read.", examples=["17"])


class StoredOutput(BaseModel):
    """What a completion added to a dataset."""

    output_index: int = described("Its place among the outputs of the completion.", examples=[0])
    kind: Literal["append", "replace", "pointer"] = described("What it did.")
    dataset: str = described("The dataset's name.", examples=["prices"])
    dataset_uuid: UUID = described("The dataset's UUID.")
    generation: int = described("The generation's number.", examples=[2])
    scope: str | None = described("What was replaced; null: rows were appended.")
    location: str | None = described("Where the data is kept; null: in Tenure.")
    cursor: str | None = described("How far the data goes.")
    row_count: int | None = described("The rows that are new.", examples=[17])
    given: int | None = described("The rows that the completion had; null: a pointer.", examples=[17])
    at: datetime = described("When the job completed.")


class JobDatasets(BaseModel):
    """What a job reads and writes, and what its completion added."""

    pins: list[Pin] = described("The generations that it reads and writes.")
    outputs: list[StoredOutput] = described("What its completion added, in order.")


class StagedRows(BaseModel):
    """Rows that an attempt has staged."""

    staged: fields.Id = described("The number by which an output names them.", examples=["21"])
    rows: int = described("How many rows are staged under this number.", examples=[1])
