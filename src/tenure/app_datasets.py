"""An application's datasets: declared in code, written by its tasks, read by anybody.

prices = app.dataset("prices", shape=…, keep=3)     declare one; the first use of the database stores it
@app.task(reads=["prices"], writes=["totals"])      jobs get the generations that are current when they are made
@app.on("prices")                                   runs a task for each event of a dataset
await app.dataset("prices").current()               the rows and pointers of the current generation
app.datasets                                        sets of them: read in one snapshot, cutover, rollback
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload
from uuid import UUID

from tenure.client.retry import retry
from tenure.dataset import DatasetReader, Event, Named, dataset_name
from tenure.errors import BadInput, ConnectionLost, DatasetNotFound, NotPermitted
from tenure.jobs import validation
from tenure.jobs.dataset import (
    Dataset,
    Generation,
    NewDataset,
    NewSubscription,
    Pin,
    RolledBack,
    RowPage,
    StoredOutput,
    StoredPointer,
    Subscription,
    Switch,
    check_dataset,
)
from tenure.jobs.flow import FlowMade, NewFlow
from tenure.jobs.job import DatasetUse
from tenure.jobs.keyword_options import only_known_options
from tenure.jobs.live_worker import host_and_pid
from tenure.task import Call, Task, Ticket

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.client.connections import Connections, JobClient
    from tenure.client.dataset_calls import DatasetCalls

_log = logging.getLogger("tenure")
T = TypeVar("T")


class _TakesEvent(Protocol):
    """A task that can be called with one event."""

    def call(self, event: Event, /) -> Call[Any]: ...


ForEvents = TypeVar("ForEvents", bound=_TakesEvent)
AnyTask = TypeVar("AnyTask", bound=Task[..., Any])


class OnEvent(Protocol):
    """The type of `@app.on(…)`: takes a task with one argument, the event."""

    def __call__(self, task: ForEvents, /) -> ForEvents: ...


class OnEventWithArguments(Protocol):
    """The type of `@app.on(…, argument=…)`: the arguments are checked when the module is imported."""

    def __call__(self, task: AnyTask, /) -> AnyTask: ...


class StoredGeneration(DatasetReader):
    """A generation of a dataset, and what it contains."""

    __slots__ = ("_app", "info")

    def __init__(self, app: App, info: Generation) -> None:
        self._app = app
        #: As it was when it was read.
        self.info = info

    def __repr__(self) -> str:
        return f"<generation {self.number} of dataset {self.dataset!r}>"

    @property
    def dataset(self) -> str:
        """The name of the dataset."""
        return self.info.dataset

    @property
    def number(self) -> int:
        """Its number, from 1 (`dataset_version`)."""
        return self.info.number

    @property
    def shape(self) -> Any:
        """What its rows look like, as declared."""
        return self.info.shape

    async def _page(self, scope: str | None, after: str | None) -> RowPage:
        calls = await _calls(self._app)
        return await _repeated(lambda: calls.page(self.info.id, scope, after=after))

    async def _pointer_page(self, after: str | None) -> Sequence[StoredPointer]:
        calls = await _calls(self._app)
        return await _repeated(lambda: calls.pointers(self.info.id, after=after))

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._app._connections.wait(coroutine)


@dataclass(frozen=True, slots=True)
class AppDataset:
    """A dataset of a tenant: `app.dataset(name)`."""

    app: App
    name: str
    tenant: str

    async def show(self) -> Dataset:
        """Return the dataset as it is now; raises DatasetNotFound."""
        return await (await _calls(self.app)).find(self.name, tenant_id=self.tenant)

    async def current(self) -> StoredGeneration:
        """Return the current generation; raises DatasetNotFound."""
        return (await self.app.datasets.current([self], tenant=self.tenant))[self.name]

    def current_sync(self) -> StoredGeneration:
        """`current`, from synchronous code."""
        return self.app._connections.wait(self.current())

    async def generation(self, number: int) -> StoredGeneration:
        """Return a generation; raises DatasetNotFound."""
        found = await (await _calls(self.app)).generation(self.name, number, tenant_id=self.tenant)
        return StoredGeneration(self.app, found)

    def generation_sync(self, number: int) -> StoredGeneration:
        """`generation`, from synchronous code."""
        return self.app._connections.wait(self.generation(number))

    async def generations(self, *, limit: int = 100, before: int | None = None) -> list[StoredGeneration]:
        """Return the generations, newest first; `before` is the number of the last one of the page before."""
        calls = await _calls(self.app)
        found = await calls.generations(self.name, tenant_id=self.tenant, limit=limit, before=before)
        return [StoredGeneration(self.app, one) for one in found]

    async def new_generation(self) -> StoredGeneration:
        """Create an empty generation, which a cutover makes current; `options(writes={name: number})` writes it."""
        made = await (await _calls(self.app)).new_generation(
            self.name, tenant_id=self.tenant, created_by=_this_process()
        )
        return StoredGeneration(self.app, made)

    async def cutover(self, generation: int, *, actor: str = "app", reason: str | None = None) -> Switch:
        """Make a generation current; `app.datasets.cutover` switches several datasets at once."""
        return await self.app.datasets.cutover(
            {self.name: generation}, actor=actor, reason=reason, tenant=self.tenant
        )  # fmt: skip

    def cutover_sync(self, generation: int, *, actor: str = "app", reason: str | None = None) -> Switch:
        """`cutover`, from synchronous code."""
        return self.app._connections.wait(self.cutover(generation, actor=actor, reason=reason))

    async def rollback(self, *, actor: str = "app", reason: str | None = None) -> RolledBack:
        """Undo its last cutover, for the whole set that was switched then."""
        return await self.app.datasets.rollback([self], actor=actor, reason=reason, tenant=self.tenant)

    def rollback_sync(self, *, actor: str = "app", reason: str | None = None) -> RolledBack:
        """`rollback`, from synchronous code."""
        return self.app._connections.wait(self.rollback(actor=actor, reason=reason))


@dataclass(frozen=True, slots=True)
class AppDatasets:
    """Datasets, several at once: `app.datasets`."""

    app: App

    async def declare(self) -> None:
        """Store what this application's code declares, before the first `enqueue_in`; workers do so when they start."""
        await self.app._declare_datasets(await self.app._client())

    def declare_sync(self) -> None:
        """`declare`, from synchronous code."""
        self.app._connections.wait(self.declare())

    async def current(self, datasets: Iterable[str | Named], *, tenant: str = "default") -> dict[str, StoredGeneration]:
        """Return the current generations of these datasets, all as they were at one moment; raises DatasetNotFound."""
        names = _names(datasets)
        calls = await _calls(self.app)
        found = await _repeated(lambda: calls.current(names, tenant_id=tenant))
        return {name: StoredGeneration(self.app, one) for name, one in found.items()}

    def current_sync(self, datasets: Iterable[str | Named], *, tenant: str = "default") -> dict[str, StoredGeneration]:
        """`current`, from synchronous code."""
        return self.app._connections.wait(self.current(datasets, tenant=tenant))

    async def of_flow(self, flow: FlowMade | int) -> list[StoredGeneration]:
        """Return the generations that a flow writes, by dataset: what a cutover takes when the flow has ended."""
        chosen = flow.id if isinstance(flow, FlowMade) else flow
        calls = await _calls(self.app)
        found = await calls.of_flow(validation.check_integer("flow", chosen, 1, validation.MAX_ID))
        return [StoredGeneration(self.app, one) for one in found]

    async def cutover(
        self,
        generations: Mapping[str, int] | Iterable[StoredGeneration],
        *,
        actor: str = "app",
        reason: str | None = None,
        tenant: str = "default",
    ) -> Switch:
        """Make these generations current, in one transaction: dataset → number, or generations that were read.

        Refuses one that was rolled back or dropped, and a set that is current already.
        """
        if not isinstance(generations, Mapping):
            chosen = list(generations)
            tenant = next((one.info.tenant_id for one in chosen), tenant)
            if other := next((one for one in chosen if one.info.tenant_id != tenant), None):
                raise BadInput(f"{other!r} is of another tenant. Next: switch those of each tenant by themselves")
            generations = {one.dataset: one.number for one in chosen}
            if len(generations) < len(chosen):
                raise BadInput("two of the generations are of one dataset. Next: give one for each dataset")
        return await (await _calls(self.app)).cutover(generations, actor=actor, reason=reason, tenant_id=tenant)

    def cutover_sync(
        self,
        generations: Mapping[str, int] | Iterable[StoredGeneration],
        *,
        actor: str = "app",
        reason: str | None = None,
        tenant: str = "default",
    ) -> Switch:
        """`cutover`, from synchronous code."""
        return self.app._connections.wait(self.cutover(generations, actor=actor, reason=reason, tenant=tenant))

    async def rollback(
        self,
        datasets: Iterable[str | Named],
        *,
        actor: str = "app",
        reason: str | None = None,
        tenant: str = "default",
    ) -> RolledBack:
        """Undo the last cutover of these datasets, for its whole set, and cancel the jobs that wait to write to it.

        Refuses datasets that were not switched together, and a set of which one was switched again since.
        """
        calls = await _calls(self.app)
        return await calls.rollback(_names(datasets), actor=actor, reason=reason, tenant_id=tenant)

    def rollback_sync(
        self,
        datasets: Iterable[str | Named],
        *,
        actor: str = "app",
        reason: str | None = None,
        tenant: str = "default",
    ) -> RolledBack:
        """`rollback`, from synchronous code."""
        return self.app._connections.wait(self.rollback(datasets, actor=actor, reason=reason, tenant=tenant))

    async def switches(
        self,
        dataset: str | Named | None = None,
        *,
        tenant: str = "default",
        limit: int = 50,
        before: int | None = None,
    ) -> Sequence[Switch]:
        """Return cutovers and rollbacks with their actors, newest first; `before` is the id of the last one seen."""
        calls = await _calls(self.app)
        name = None if dataset is None else dataset_name(dataset)
        return await calls.switches(dataset=name, tenant_id=tenant, limit=limit, before=before)

    async def pins(self, job: Ticket[Any] | int) -> Sequence[Pin]:
        """Return the generations that a job reads and writes."""
        return await (await _calls(self.app)).pins(_job_id(job))

    async def outputs(self, job: Ticket[Any] | int) -> Sequence[StoredOutput]:
        """Return what the completion of a job added to datasets."""
        return await (await _calls(self.app)).outputs(_job_id(job))

    async def subscriptions(self, dataset: str | Named | None = None) -> Sequence[Subscription]:
        """Return the tasks that run for events, of this dataset or of all."""
        name = None if dataset is None else dataset_name(dataset)
        return await (await _calls(self.app)).subscriptions(dataset=name)

    async def unsubscribe(
        self, dataset: str | Named, task: Task[..., Any] | str, *, contract: str = "standard", tenant: str = "default"
    ) -> bool:
        """End a subscription, with the events that wait for it; returns whether there was one.

        A worker whose code has it stores it again when it starts.
        """
        if isinstance(task, Task):
            contract, tenant = task.given.contract, task.given.tenant
        name = task.name if isinstance(task, Task) else task
        calls = await _calls(self.app)
        return await calls.unsubscribe(dataset_name(dataset), name, contract=contract, tenant_id=tenant)


class DatasetVerbs:
    """The part of `App` that is about datasets."""

    name: str | None
    if TYPE_CHECKING:
        _connections: Connections

        @property
        def application(self) -> str: ...
        async def _client(self) -> JobClient: ...

    def _init_datasets(self) -> None:
        #: Dataset → how it is declared; for each tenant that uses it.
        self._dataset_declarations: dict[str, NewDataset] = {}
        #: (dataset, contract, task) → the subscription.
        self._subscriptions: dict[tuple[str, str, str], NewSubscription] = {}
        #: (tenant, dataset): to be stored, and those of them that this process has stored.
        self._used_datasets: dict[tuple[str, str], None] = {}
        self._stored_datasets: set[tuple[str, str]] = set()

    @overload
    def dataset(self, name: str, /, *, tenant: str = "default") -> AppDataset: ...
    @overload
    def dataset(
        self, name: str, /, *, shape: Any = None, keep: int | None = None, tenant: str = "default"
    ) -> AppDataset: ...
    @only_known_options("app.dataset")
    def dataset(self, name: str, /, *, shape: Any = ..., keep: Any = ..., tenant: str = "default") -> AppDataset:
        """Return a dataset by its name; with `shape` or `keep`, declare it.

        shape           what its rows look like, any JSON: a changed shape is a new generation, and the old one stays
        keep            how many former generations stay beside the current one; default: all
        tenant          whose dataset it is; a declaration holds for each tenant
        """
        validation.check_name("tenant_id", tenant)
        if shape is ... and keep is ...:
            validation.check_name("dataset", name)
            return AppDataset(self, name, tenant)  # type: ignore[arg-type]
        new = NewDataset(name, shape=None if shape is ... else shape, keep=None if keep is ... else keep)
        check_dataset(new)
        if self._dataset_declarations.setdefault(name, new) != new:
            raise BadInput(f"dataset {name!r} is already declared in another way. Next: declare it once")
        self._note_dataset(tenant, name)
        return AppDataset(self, name, tenant)  # type: ignore[arg-type]

    @property
    def datasets(self) -> AppDatasets:
        """Datasets, several at once: read, cut over, roll back."""
        return AppDatasets(self)  # type: ignore[arg-type]

    @overload
    def on(self, dataset: str | Named, /) -> OnEvent: ...
    @overload
    def on(
        self, dataset: str | Named, /, *, argument: str | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> OnEventWithArguments: ...
    @only_known_options("@app.on")
    def on(
        self, dataset: str | Named, /, *, argument: str | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run a task for each event of a dataset, once for each input: it stands above `@app.task`.

        argument        the argument that takes the event, a `tenure.dataset.Event`; default: the first one
        kwargs          the other arguments

        Workers store the subscription when they start. The job reads the generation that the event is about.
        """
        name = validation.check_name("dataset", dataset_name(dataset))

        def subscribe(task: object) -> Any:
            if not isinstance(task, Task):
                raise BadInput("@app.on takes a task. Next: put @app.on above @app.task, and not below it")
            if task.app is not self:
                raise BadInput(f"task {task.name} belongs to another App. Next: use the on of that App")
            new = _subscription(task, name, argument, kwargs or {})
            key = (name, new.job.contract, new.job.type)
            if self._subscriptions.setdefault(key, new) is not new:
                raise BadInput(f"task {task.name} is subscribed to dataset {name!r} already. Next: subscribe it once")
            self._note_dataset(task.given.tenant, name)
            return task

        return subscribe

    def _note_dataset(self, tenant: str, name: str) -> None:
        """Let the next use of the database create this dataset if it does not exist."""
        self._used_datasets.setdefault((tenant, name))

    def _writes(self, tenant: str, uses: tuple[DatasetUse, ...]) -> tuple[DatasetUse, ...]:
        """What a job writes, with the shapes that the code declares; notes the datasets."""
        found = []
        for use in uses:
            self._note_dataset(tenant, use.name)
            declared = self._dataset_declarations.get(use.name)
            if declared is not None and declared.shape is not None and use.generation is None:
                use = use._replace(shape_json=check_dataset(declared))
            found.append(use)
        return tuple(found)

    def _note_flow(self, flow: NewFlow) -> None:
        for node in flow.nodes:
            for use in node.job.writes:
                self._note_dataset(flow.tenant_id, use.name)

    async def _declare_datasets(self, client: JobClient) -> None:
        """Store the datasets that this application declares, writes or is subscribed to, as far as it has not yet."""
        for tenant, name in [key for key in self._used_datasets if key not in self._stored_datasets]:
            declared = self._dataset_declarations.get(name)
            if declared is not None:
                new = replace(declared, tenant_id=tenant)
                await client.datasets.declare(new, created_by=_this_process())
            else:
                try:
                    await client.datasets.find(name, tenant_id=tenant)
                except DatasetNotFound:  # what others have declared stays as it is
                    await client.datasets.declare(NewDataset(name, tenant), created_by=_this_process())
            self._stored_datasets.add((tenant, name))

    async def _declare_datasets_as_worker(self, client: JobClient) -> None:
        """Store datasets anew, and subscriptions; a key that may not do that is reported in the log."""
        self._stored_datasets.clear()
        try:
            await self._declare_datasets(client)
            if self._subscriptions:
                await client.datasets.subscribe(list(self._subscriptions.values()), application=self.application)
            if self._used_datasets:
                await self._warn_of_old_subscriptions(client)
        except NotPermitted as error:
            if error.reason_code == "AUTH_REQUIRED":
                raise
            _log.warning(
                "this key may not declare the datasets of %s (%s). Next: run a worker whose key has the scope work and "
                "is bound to no tenant", self.application, ", ".join(sorted({name for _, name in self._used_datasets})),
            )  # fmt: skip

    async def _warn_of_old_subscriptions(self, client: JobClient) -> None:
        for one in await client.datasets.subscriptions():
            if one.application == self.application and (one.dataset, one.contract, one.type) not in self._subscriptions:
                _log.warning(
                    "task %s is subscribed to dataset %s, and the code of %s no longer says so: its jobs go on being "
                    "made. Next: await app.datasets.unsubscribe(%r, %r)",
                    one.type, one.dataset, self.application, one.dataset, one.type,
                )  # fmt: skip


def _subscription(
    task: Task[..., Any], dataset: str, argument: str | None, kwargs: Mapping[str, Any]
) -> NewSubscription:
    """The subscription of a task; refuses arguments that do not fit its signature."""
    sample = Event(dataset, UUID(int=0), 1, cursor=0)
    call = task.call(sample, **kwargs) if argument is None else task.call(**{**kwargs, argument: sample})
    payload = dict(call.job.payload)
    name = argument or next(each for each in payload if each not in kwargs)
    del payload[name]
    reads = call.job.reads
    if all(use.name != dataset for use in reads):
        reads = (DatasetUse(dataset), *reads)
    # The handler that imports this module, if one does, is not what the job comes from.
    job = replace(call.job, payload=payload, reads=reads, trace_id=None, correlation_id=None)
    return NewSubscription(dataset, job, name)


async def _calls(app: App) -> DatasetCalls:
    return (await app._client()).datasets


async def _repeated(call: Callable[[], Awaitable[T]]) -> T:
    """Read something; again where the answer was lost."""
    return await retry(call, (ConnectionLost,), attempts=2)


def _names(datasets: Iterable[str | Named]) -> list[str]:
    if isinstance(datasets, str):
        raise BadInput(f"datasets is a list of names, as [{datasets!r}]")
    return [dataset_name(one) for one in datasets]


def _job_id(job: Ticket[Any] | int) -> int:
    return validation.check_integer("job", job.id if isinstance(job, Ticket) else job, 1, validation.MAX_ID)


def _this_process() -> str:
    return "{}:{}".format(*host_and_pid())
