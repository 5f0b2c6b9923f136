"""A flow to start: its nodes, and what each of them waits for.

flow = app.flow("nightly")
rows = flow.node(extract.call(day))                 a node: one job
parts = flow.map(transform.call(rows.each))         a job for each item of the list that `rows` returns
flow.node(load.call(parts.result), after=[check])   a result as an argument; `after`: order alone
flow.cleanup(report.call())                         when all others have ended, and one of them badly
await flow.start()                                  all of it in one transaction

flow.chain(a.call(1), b, c)        one after the other, each with the result of the one before
flow.group(a.call(1), a.call(2))   beside each other
flow.chord([a.call(1), a.call(2)], b)    a group, then `b` with the list of its results
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, cast, overload

from tenure.errors import BadInput
from tenure.jobs import validation
from tenure.jobs.arguments.node_result import NodeResult
from tenure.jobs.flow import FlowMade, NewFlow, NewNode, OnFailure, member_of, named_as_member
from tenure.jobs.keyword_options import only_known_options
from tenure.task import Call, Task

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.jobs.connection_types import AsyncConnection, SyncConnection

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
R = TypeVar("R")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)


class Takes(Protocol[T_contra, R_co]):
    """A task that can be called with one argument: the result of the step before."""

    def call(self, result: T_contra, /) -> Call[R_co]: ...


class Node(NodeResult, Generic[R_co]):
    """A node of a flow. As an argument of another node's call it stands for its result."""

    __slots__ = ()

    @property
    def result(self) -> R_co:
        """Stands for its result in the call of another node, with the type that the task's annotation says."""
        return cast("R_co", self)

    @property
    def each(self: Node[Sequence[T]]) -> T:
        """Stands for each item of the list that it returns, in the call of `flow.map`."""
        return cast("T", NodeResult(self.flow, self.name, is_each=True))


class Group(NamedTuple, Generic[R]):
    """Nodes beside each other."""

    nodes: tuple[Node[R], ...]

    @property
    def result(self) -> list[R]:
        """Stands for the list of their results, in the call of another node."""
        return cast("list[R]", list(self.nodes))


class FlowGraph:
    """A flow to start."""

    def __init__(self, app: App, name: str, on_failure: OnFailure, tenant: str, key: str | None) -> None:
        self.app = app
        self.name = name
        self._options = NewFlow(name, (), on_failure, tenant, key)
        self._nodes: dict[str, NewNode] = {}
        #: Name → a node that is named like a job of a mapped node of this name.
        self._like_members: dict[str, str] = {}

    @only_known_options("flow.node")
    def node(
        self,
        call: Call[R],
        *,
        name: str | None = None,
        after: Iterable[Node[Any] | Group[Any]] = (),
        on_failure: OnFailure | None = None,
    ) -> Node[R]:
        """Add a node: the job of this call, `task.call(…)`. Nodes whose results it takes are its parents.

        name            default: the name of its task
        after           nodes that must end before it starts
        on_failure      when it ends badly: "stop", "skip" or "continue"; default: the flow's
        """
        return self._add(call, name, after, on_failure, None)

    @only_known_options("flow.map")
    def map(
        self,
        call: Call[R],
        *,
        name: str | None = None,
        after: Iterable[Node[Any] | Group[Any]] = (),
        on_failure: OnFailure | None = None,
    ) -> Node[list[R]]:
        """Add a mapped node: a job for each item of a list. One argument of the call is `node.each`.

        name            default: the name of its task
        after           nodes that must end before its jobs start
        on_failure      when one of its jobs ends badly: "stop", "skip" or "continue"; default: the flow's
        """
        each = [argument for argument, given in _call(call).results.items() if _is_each(given)]
        if len(each) != 1:
            raise BadInput(
                f"flow.map takes a call with one argument that is node.each; that of {call.new.type} has "
                f"{len(each) or 'none'}. Next: flow.map({call.new.type}.call(rows.each)), or flow.node for one job"
            )
        return cast("Node[list[R]]", self._add(call, name, after, on_failure, each[0]))

    @only_known_options("flow.cleanup")
    def cleanup(self, call: Call[Any], *, name: str | None = None) -> None:
        """Add a clean-up node: it runs when all other nodes have ended and one of them badly; else it is skipped.

        name            default: the name of its task
        """
        self._add(call, name, (), None, None, cleanup=True)

    def group(self, *calls: Call[R]) -> Group[R]:
        """Add a node for each call. The second node of a task is named `task-2`, and so on."""
        return Group(tuple(self._add(call, self._free_name(call), (), None, None) for call in calls))

    def chord(self, calls: Iterable[Call[A]], then: Takes[list[A], B]) -> Node[B]:
        """Add a group, and a node that takes the list of its results."""
        return self._next(then, self.group(*calls).result)

    @overload
    def chain(self, first: Call[A], second: Call[B] | Takes[A, B], /) -> Node[B]: ...
    @overload
    def chain(self, first: Call[A], second: Call[B] | Takes[A, B], third: Call[C] | Takes[B, C], /) -> Node[C]: ...
    @overload
    def chain(
        self, first: Call[A], second: Call[B] | Takes[A, B], third: Call[C] | Takes[B, C],
        fourth: Call[D] | Takes[C, D], /,
    ) -> Node[D]: ...  # fmt: skip
    @overload
    def chain(
        self, first: Call[A], second: Call[B] | Takes[A, B], third: Call[C] | Takes[B, C],
        fourth: Call[D] | Takes[C, D], fifth: Call[E] | Takes[D, E], /,
    ) -> Node[E]: ...  # fmt: skip
    @overload
    def chain(self, first: Call[Any], /, *steps: Call[R]) -> Node[R]: ...
    def chain(self, first: Call[Any], /, *steps: Any) -> Node[Any]:
        """Add nodes one after the other; returns the last one.

        A task as a step takes the result of the step before as its argument; a call takes nothing and only waits.
        """
        last: Node[Any] = self._add(first, self._free_name(first), (), None, None)
        for step in steps:
            if isinstance(step, Call):
                last = self._add(step, self._free_name(step), [last], None, None)
            else:
                last = self._next(step, last)
        return last

    def new(self) -> NewFlow:
        """The flow as it is stored."""
        return replace(self._options, nodes=tuple(self._nodes.values()))

    async def start(self) -> FlowMade:
        """Store the flow and the first of its jobs, in one transaction; with a key at most once."""
        return await self.app._start_flow(self.new())

    def start_sync(self) -> FlowMade:
        """`start`, from synchronous code."""
        return self.app._connections.wait(self.app._start_flow(self.new()))

    @overload
    def start_in(self, connection: SyncConnection) -> FlowMade: ...
    @overload
    def start_in(self, connection: AsyncConnection) -> Awaitable[FlowMade]: ...
    def start_in(self, connection: Any) -> Any:
        """Store the flow in the caller's own transaction: a commit starts it, a rollback leaves nothing of it.

        The connection is one that `task.enqueue_in` takes. With an asynchronous one the result must be awaited.
        """
        return self.app._start_flow_in(connection, self.new())

    def _next(self, task: Any, result: Any) -> Node[Any]:
        """Add a node of a task that takes this result."""
        if not isinstance(task, Task):
            raise BadInput(f"a step behind the first is a task or task.call(…), not {task!r}")
        call = task.call(result)
        return self._add(call, self._free_name(call), (), None, None)

    def _free_name(self, call: Call[Any]) -> str:
        own = self._own_name(_call(call).new.type)
        n, name = 1, own
        while name in self._nodes:
            n += 1
            name = f"{own}-{n}"
        return name

    def _own_name(self, type: str) -> str:
        """The name of a task without the prefix of its application."""
        return type if self.app.name is None else type.removeprefix(f"{self.app.name}.")

    def _add(
        self, call: Call[R], name: str | None, after: Iterable[Any], on_failure: OnFailure | None, each: str | None,
        *, cleanup: bool = False,
    ) -> Node[R]:  # fmt: skip
        job = _call(call).new
        name = self._own_name(job.type) if name is None else validation.check_name("node", name)
        where = f"node {name!r} of flow {self.name!r}"
        if name in self._nodes:
            raise BadInput(f"flow {self.name!r} has a node {name!r} already. Next: give this one another name=")
        self._refuse_member_name(name, is_mapped=each is not None)
        if job.tenant_id not in ("default", self._options.tenant_id):
            raise BadInput(
                f"{where} has the tenant {job.tenant_id!r}, and the flow has {self._options.tenant_id!r}. "
                f"Next: app.flow({self.name!r}, tenant={job.tenant_id!r})"
            )
        inputs: dict[str, str | Sequence[str]] = {}
        for argument, given in call.results.items():
            for result in given if isinstance(given, list) else (given,):
                self._check_own(result, f"argument {argument!r} of {where}")
                if result.is_each and each is None:
                    raise BadInput(
                        f"argument {argument!r} of {where} is {result!r}. Next: flow.map, or pass its .result"
                    )
            inputs[argument] = [one.name for one in given] if isinstance(given, list) else given.name
        parents = tuple(dict.fromkeys(parent.name for parent in self._nodes_of(after, where)))
        self._nodes[name] = NewNode(name, job, parents, inputs, each, on_failure, cleanup)
        return Node(self, name)

    def _refuse_member_name(self, name: str, *, is_mapped: bool) -> None:
        """Refuse a node that is named like a job of a mapped node, whichever of them comes first."""
        if (whole := member_of(name)) is not None:
            if whole in self._nodes and self._nodes[whole].each is not None:
                raise BadInput(f"flow {self.name!r}: {named_as_member(name, whole)}")
            self._like_members[whole] = name
        if is_mapped and name in self._like_members:
            raise BadInput(f"flow {self.name!r}: {named_as_member(self._like_members[name], name)}")

    def _nodes_of(self, after: Iterable[Any], where: str) -> Iterable[NodeResult]:
        if isinstance(after, (str, NodeResult, Group)) or not isinstance(after, Iterable):
            raise BadInput(f"after of {where} is a list of nodes, as after=[rows]; got {after!r}")
        for given in after:
            for parent in given.nodes if isinstance(given, Group) else (given,):
                if not isinstance(parent, Node):
                    raise BadInput(f"after of {where} takes what flow.node returned, not {parent!r}")
                self._check_own(parent, f"after of {where}")
                yield parent

    def _check_own(self, result: NodeResult, where: str) -> None:
        if result.flow is not self:
            other = result.flow.name if isinstance(result.flow, FlowGraph) else result.flow
            raise BadInput(
                f"{where}: node {result.name!r} belongs to another flow, {other!r}. Next: add it to this one"
            )


def _call(call: object) -> Call[Any]:
    if isinstance(call, Call):
        return call
    hint = f". Next: {call.name.rpartition('.')[2]}.call(…)" if isinstance(call, Task) else ""
    raise BadInput(f"a node takes task.call(…), not {call!r:.80}{hint}")


def _is_each(given: object) -> bool:
    return isinstance(given, NodeResult) and given.is_each
