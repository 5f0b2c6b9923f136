"""Datasets through a dispatcher: the same calls as `tenure.postgres.datasets.datasets.Datasets`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar
from urllib.parse import quote

from tenure.client.dispatcher_requests import DispatcherRequests, repeat_if_lost, split_items
from tenure.client.job_request import job_fields, tenant_field
from tenure.errors import BadInput, DatasetNotFound
from tenure.jobs import dataset_json as as_json
from tenure.jobs import validation
from tenure.jobs.dataset import (
    Append,
    Dataset,
    Generation,
    NewDataset,
    NewSubscription,
    Output,
    Pin,
    Pointer,
    Replace,
    RolledBack,
    Row,
    RowPage,
    StoredOutput,
    StoredPointer,
    Subscription,
    Switch,
    check_dataset,
    check_output,
    check_rows,
)
from tenure.jobs.job import Held, NewJob

T = TypeVar("T")
_DATASETS, _GENERATIONS = "/api/v1/datasets", "/api/v1/dataset-generations"
_SUBSCRIPTIONS = "/api/v1/dataset-subscriptions"
#: The most rows in one request, and about the most bytes of rows that a completion has itself.
MAX_ROWS, _MAX_COMPLETION_BYTES = 50_000, 500_000
#: The most generations and switches on one page, and seconds that a call about thousands of jobs may take.
_FEW, _LONG_S = 100, 120.0


class RemoteDatasets:
    """The datasets behind one dispatcher. The dispatcher records the owner of the API key, not an actor."""

    def __init__(self, requests: DispatcherRequests, max_bytes: int) -> None:
        self._requests = requests
        self._max_bytes = max_bytes

    async def declare(self, dataset: NewDataset, *, created_by: str | None = None) -> Generation:
        """Create a dataset, or change what it keeps; returns the generation that jobs of this code write."""
        check_dataset(dataset, self._max_bytes)
        body = {"shape": dataset.shape, "keep": dataset.keep, **tenant_field(dataset.tenant_id)}
        return await self._send("PUT", _path(dataset.name), body, as_json.generation_from_json)

    async def new_generation(
        self, name: str, *, tenant_id: str = "default", flow_id: int | None = None, created_by: str | None = None
    ) -> Generation:
        """Create an empty generation of the newest one's shape. A call whose answer was lost is not repeated."""
        if flow_id is not None:
            raise BadInput("a dispatcher makes the generations of flows itself. Next: leave flow_id out")
        path = f"{_path(name)}/generations"
        return await self._once(path, tenant_field(tenant_id), as_json.generation_from_json)

    async def list(
        self, *, tenant_id: str | None = None, limit: int = 100, after: int | None = None
    ) -> Sequence[Dataset]:
        """Return datasets by tenant and name; `after`: the id of the last one of the page before."""
        query = {"tenant_id": tenant_id, "limit": limit, "cursor": after}
        return await self._read(_DATASETS, _each("datasets", as_json.dataset_from_json), query)

    async def find(self, name: str, *, tenant_id: str = "default") -> Dataset:
        """Return a dataset; raises DatasetNotFound."""
        return await self._read(_path(name), as_json.dataset_from_json, tenant_field(tenant_id))

    async def generations(
        self, name: str, *, tenant_id: str = "default", limit: int = 100, before: int | None = None
    ) -> Sequence[Generation]:
        """Return the generations of a dataset, newest first, at most 100; `before`: the number of the last one."""
        query = {**tenant_field(tenant_id), "limit": min(limit, _FEW), "cursor": before}
        read = _each("generations", as_json.generation_from_json)
        return await self._read(f"{_path(name)}/generations", read, query)

    async def generation(self, name: str, number: int, *, tenant_id: str = "default") -> Generation:
        """Return a generation; raises DatasetNotFound."""
        query = {**tenant_field(tenant_id), "number": number}
        read = _each("generations", as_json.generation_from_json)
        (found,) = await self._read(f"{_path(name)}/generations", read, query)
        return found

    async def by_id(self, generation_id: int) -> Generation:
        """Return a generation by its id; raises DatasetNotFound."""
        return await self._read(f"{_GENERATIONS}/{generation_id}", as_json.generation_from_json)

    async def of_flow(self, flow_id: int) -> Sequence[Generation]:
        """Return the generations that a flow writes, by dataset."""
        read = _each("generations", as_json.generation_from_json)
        return await self._read(_GENERATIONS, read, {"flow_id": flow_id})

    async def current(self, names: Sequence[str], *, tenant_id: str = "default") -> Mapping[str, Generation]:
        """Return the current generations of these datasets as they were at one moment; raises DatasetNotFound."""
        if not names:
            return {}
        body = {"datasets": list(names), **tenant_field(tenant_id)}
        read = _each("generations", as_json.generation_from_json)
        return {one.dataset: one for one in await self._send("POST", f"{_GENERATIONS}/current", body, read)}

    async def pins(self, job_id: int) -> Sequence[Pin]:
        """Return the generations that a job reads and writes."""
        read = _each("pins", partial(as_json.pin_from_json, job_id))
        return await self._read(f"/api/v1/jobs/{job_id}/datasets", read, about=job_id)

    async def outputs(self, job_id: int) -> Sequence[StoredOutput]:
        """Return what the completion of a job added to datasets, in its order."""
        read = _each("outputs", as_json.stored_output_from_json)
        return await self._read(f"/api/v1/jobs/{job_id}/datasets", read, about=job_id)

    async def rows(self, generation_id: int, scope: str | None = None, *, page: int = 1_000) -> AsyncIterator[Row]:
        """Read the rows of a generation, or of one scope of it, page by page, by scope and key."""
        after: str | None = None
        while True:
            found = await self.page(generation_id, scope, limit=page, after=after)
            for row in found.rows:
                yield row
            if (after := found.next) is None:
                return

    async def page(
        self, generation_id: int, scope: str | None = None, *, limit: int = 1_000, after: str | None = None
    ) -> RowPage:
        """Return a page of what `rows` reads; `after`: the `next` of the page before."""
        query = {"scope": scope, "limit": min(limit, 1_000), "after": after}
        return await self._read(f"{_GENERATIONS}/{generation_id}/rows", _row_page, query)

    async def pointers(
        self, generation_id: int, *, limit: int = 1_000, after: str | None = None
    ) -> Sequence[StoredPointer]:
        """Return the pointers of a generation by scope, at most 1,000; `after`: the last scope of the page before."""
        read = _each("pointers", as_json.pointer_from_json)
        query = {"limit": min(limit, 1_000), "after": after}
        return await self._read(f"{_GENERATIONS}/{generation_id}/pointers", read, query)

    async def stage(
        self,
        held: Held,
        dataset: str,
        rows: Sequence[Any],
        keys: Sequence[str] | None = None,
        *,
        staged: int | None = None,
    ) -> int:
        """Store rows that the completion of this attempt refers to; in several requests where they are large."""
        documents = check_rows("rows", rows, keys, self._max_bytes)
        before = 0
        if staged is not None and keys is None:  # with the places of its rows, a repeat of a part adds nothing
            staged, before = await self._stage(held, dataset, staged, [], None, None)
        for part in list(split_items(documents, MAX_ROWS)) or [range(0)]:
            some_keys = None if keys is None else [keys[n] for n in part]
            first = before + part.start if keys is None else None
            staged, _ = await self._stage(held, dataset, staged, [documents[n] for n in part], some_keys, first)
        assert staged is not None
        return staged

    async def stage_large(self, held: Held, outputs: Sequence[Output]) -> Sequence[Output]:
        """Stage the rows of outputs that are too large for the request of a completion; returns what it sends."""
        sent = []
        room = _MAX_COMPLETION_BYTES
        for n, output in enumerate(outputs):
            documents = check_output(f"outputs[{n}]", output, self._max_bytes)
            size = sum(map(len, documents))
            if isinstance(output, Pointer) or size <= room:
                room -= size
                sent.append(output)
            else:
                number = await self.stage(held, output.dataset, output.rows, output.keys)
                sent.append(
                    Append(output.dataset, staged=number)
                    if isinstance(output, Append)
                    else Replace(output.dataset, output.scope, staged=number)
                )
        return sent

    async def _stage(
        self, held: Held, dataset: str, staged: int | None, rows: Sequence[str], keys: Sequence[str] | None,
        first: int | None,
    ) -> tuple[int, int]:  # fmt: skip
        """Stage a part, which may be sent again; returns its number and how many rows are staged by now."""
        fields = {
            "claims": held.claims, "lease_token": str(held.token), "dataset": dataset, "keys": keys, "first": first,
            "staged": None if staged is None else str(staged),
        }  # fmt: skip
        text = validation.to_json("stage", fields, 64 * validation.MAX_BYTES)
        body, path = f'{text[:-1]},"rows":[{",".join(rows)}]}}', f"/api/v1/jobs/{held.id}/stage"
        return await repeat_if_lost(
            lambda: self._requests.send("POST", path, body, _staged, about=held.id, wait_s=_LONG_S, traced=True)
        )

    async def cutover(
        self, generations: Mapping[str, int], *, actor: str, reason: str | None = None, tenant_id: str = "default"
    ) -> Switch:
        """Make these generations current, all or none. A call whose answer was lost is not repeated."""
        body = {"generations": dict(generations), "reason": reason, **tenant_field(tenant_id)}
        return await self._once("/api/v1/dataset-cutovers", body, as_json.switch_from_json)

    async def rollback(
        self, names: Sequence[str], *, actor: str, reason: str | None = None, tenant_id: str = "default"
    ) -> RolledBack:
        """Undo the last cutover of these datasets for its whole set. A call whose answer was lost is not repeated."""
        body = {"datasets": list(names), "reason": reason, **tenant_field(tenant_id)}
        return await self._once("/api/v1/dataset-rollbacks", body, as_json.rolled_back_from_json)

    async def switches(
        self, *, dataset: str | None = None, tenant_id: str = "default", limit: int = 50, before: int | None = None
    ) -> Sequence[Switch]:
        """Return cutovers and rollbacks, newest first, at most 100; `before`: the id of the last one."""
        query = {"dataset": dataset, "limit": min(limit, _FEW), "cursor": before, **tenant_field(tenant_id)}
        return await self._read("/api/v1/dataset-switches", _each("switches", as_json.switch_from_json), query)

    async def subscribe(
        self, subscriptions: Sequence[NewSubscription], *, application: str | None = None
    ) -> Sequence[int]:
        """Run these tasks for each event of their datasets from now on; returns their ids in order."""
        body = {"subscriptions": list(map(self._subscription, subscriptions)), "application": application}
        return await self._send("PUT", _SUBSCRIPTIONS, body, lambda answer: [int(one) for one in answer["ids"]])

    def _subscription(self, new: NewSubscription) -> dict[str, Any]:
        return {"dataset": new.dataset, "argument": new.argument, "job": self._subscribed_job(new.job)}

    def _subscribed_job(self, job: NewJob) -> dict[str, Any]:
        """The job of a subscription; it has the fields of a schedule's job."""
        if job.expires_at is not None or job.run_at is not None:
            raise BadInput("the job of a subscription is made for each event. Next: leave run_at and expires_at out")
        if job.key is not None:
            raise BadInput("the jobs of a subscription get their keys from their events. Next: leave key out")
        fields, _ = job_fields(job, self._max_bytes)
        for name in ("delay_seconds", "expires_seconds"):
            fields.pop(name, None)
        return {
            **fields, **tenant_field(job.tenant_id), "payload": job.payload, "delay_ms": job.delay_ms,
            "expires_ms": job.expires_ms, "unique": None if job.unique is None else job.unique._asdict(),
        }  # fmt: skip

    async def unsubscribe(
        self, dataset: str, type: str, *, contract: str = "standard", tenant_id: str = "default"
    ) -> bool:
        """End a subscription; returns whether there was one."""
        body = {"dataset": dataset, "type": type, "contract": contract, **tenant_field(tenant_id)}
        return await self._send("POST", f"{_SUBSCRIPTIONS}/end", body, lambda answer: bool(answer["ended"]))

    async def subscriptions(
        self, *, dataset: str | None = None, tenant_id: str | None = None
    ) -> Sequence[Subscription]:
        """Return the subscriptions by dataset and type; at most 1,000."""
        read = _each("subscriptions", as_json.subscription_from_json)
        return await self._read(_SUBSCRIPTIONS, read, {"dataset": dataset, "tenant_id": tenant_id})

    async def _read(
        self, path: str, read: Callable[[Any], T], query: Mapping[str, Any] | None = None, about: int | None = None
    ) -> T:
        """Read something; again where the answer was lost."""
        params = {name: str(value) for name, value in (query or {}).items() if value is not None}
        return await repeat_if_lost(
            lambda: self._requests.send("GET", path, None, read, params=params, about=about, traced=True)
        )

    async def _send(
        self, method: Literal["POST", "PUT"], path: str, body: Mapping[str, Any], read: Callable[[Any], T]
    ) -> T:
        """Send a request that may be repeated where its answer was lost."""
        text = _body(body)
        return await repeat_if_lost(lambda: self._requests.send(method, path, text, read, traced=True))

    async def _once(self, path: str, body: Mapping[str, Any], read: Callable[[Any], T]) -> T:
        """Send a request whose repeat would do something else."""
        return await self._requests.send("POST", path, _body(body), read, wait_s=_LONG_S, traced=True)


def _body(body: Mapping[str, Any]) -> str:
    given = {name: value for name, value in body.items() if value is not None}
    return validation.to_json("request", given, 8 * validation.MAX_BYTES)


def _path(name: str) -> str:
    if "/" in validation.check_name("dataset", name) or name in (".", ".."):
        raise DatasetNotFound(name)  # no dataset has such a name
    return f"{_DATASETS}/{quote(name, safe='')}"


def _each(name: str, read: Callable[[Any], T]) -> Callable[[Any], Sequence[T]]:
    return lambda answer: [read(one) for one in answer[name]]


def _row_page(answer: Mapping[str, Any]) -> RowPage:
    rows = [Row(one["scope"], one["key"], as_json.row_text(one["value"])) for one in answer["rows"]]
    return RowPage(rows, answer["next"])


def _staged(answer: Mapping[str, Any]) -> tuple[int, int]:
    return int(answer["staged"]), answer["rows"]
