"""Requests and responses of the routes for flows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, Field, RootModel, StrictBool, StrictStr, WithJsonSchema
from pydantic_core import PydanticCustomError

from tenure.http.models import fields
from tenure.http.models.fields import DIGITS, RequestBody, described, optional
from tenure.http.models.jobs import NewJobFields
from tenure.jobs.flow import FlowState, NewFlow, NewNode, NodeState, OnFailure
from tenure.jobs.validation import LENGTHS

#: The most nodes of a flow in one request; a program with a database connection can create larger ones.
MAX_NODES = 10_000
_NODE = {"type": "string", "minLength": 1, "maxLength": LENGTHS["node"]}


def _check_inputs(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Each input is a name of a node, or a list of names; here, so that the message names the argument."""
    for argument, given in inputs.items():
        if not isinstance(given, str) and not (isinstance(given, list) and all(isinstance(one, str) for one in given)):
            shown = ascii(argument)[:60]
            raise PydanticCustomError("inputs", "{argument} must be the name of a node, or a list of names",
                                      {"argument": shown})  # fmt: skip
    return inputs


#: Argument → the name of the parent whose result it becomes, or a list of names.
_Inputs = Annotated[
    dict[StrictStr, Any],
    AfterValidator(_check_inputs),
    WithJsonSchema({
        "type": "object", "additionalProperties": {"oneOf": [_NODE, {"type": "array", "items": _NODE}]},
    }),
]  # fmt: skip


class NodeOfFlow(NewJobFields):
    """A node of a flow to create: its job, and what it waits for. Times count from the moment at which it starts."""

    name: fields.Node | None = optional("Its name, unique in the flow; default its type.", examples=["load"])
    after: list[fields.Node] = described(
        "Nodes that must end before it starts; default none.", default=[], examples=[["check"]]
    )
    inputs: _Inputs = described(
        "Argument to the node whose result it becomes, or to a list of nodes; default none.", default={},
        examples=[{"rows": "transform"}],
    )  # fmt: skip
    each: StrictStr | None = optional("The argument of inputs whose list makes one job for each item; default none.")
    on_failure: OnFailure | None = optional("What happens to the rest when it ends badly; default the flow's.")
    cleanup: StrictBool = described(
        "Whether it runs when all others have ended and one of them badly; default false.", default=False
    )

    def node(self, tenant: str | None) -> NewNode:
        """The node to create."""
        name = self.type if self.name is None else self.name
        return NewNode(
            name, self.new_job(tenant), self.after, self.inputs, self.each, self.on_failure, self.cleanup
        )  # fmt: skip


class CreateFlow(RequestBody):
    """A flow to create: jobs that start in the order of their dependencies."""

    name: Annotated[StrictStr, fields.text("flow")] = described(
        "Its name; flows may have the same.", examples=["nightly"]
    )
    nodes: Annotated[list[NodeOfFlow], Field(min_length=1, max_length=MAX_NODES)] = described(
        "Its nodes, in any order.",
        examples=[[{"type": "transform", "name": "check"}, {"type": "load", "after": ["check"]}]],
    )
    on_failure: OnFailure = described(
        "What a node that ends badly does to the rest; default stop.", default="stop", examples=["skip"]
    )
    tenant_id: fields.Tenant | None = optional("The tenant of all its jobs; default the key's tenant, or default.")
    idempotency_key: fields.IdempotencyKey = None

    def flow(self, nodes: list[NewNode], tenant: str | None, key: str | None) -> NewFlow:
        """The flow to create of these nodes."""
        return NewFlow(self.name, nodes, self.on_failure, tenant or "default", key)


class CancelFlow(RequestBody):
    """An operator cancels a flow."""

    mode: Literal["soft", "hard"] = described(
        "soft asks the holders of its jobs to stop; hard ends their leases at once. Default soft.", default="soft"
    )
    reason: fields.ReasonForLog = None


class ResumeFlow(RequestBody):
    """An operator runs nodes of a flow again."""

    nodes: Annotated[list[fields.Node], Field(min_length=1, max_length=MAX_NODES)] | None = optional(
        "The nodes to run again, by name; default all that failed or were cancelled."
    )


class FlowSearch(BaseModel):
    """Which flows are listed."""

    state: FlowState | None = optional("Only flows in this state.")
    name: Annotated[str | None, fields.text("flow"), described("Only flows of this name.")] = None
    tenant_id: Annotated[str | None, fields.text("tenant_id"), described("Only flows of this tenant.")] = None
    limit: fields.Limit = 50
    cursor: fields.Cursor = None


class FlowQuery(BaseModel):
    """Which of its nodes are shown."""

    limit: Annotated[int, described("The largest number of nodes; 0: none. Default 1000.", ge=0, le=1_000)] = 1_000
    cursor: fields.Cursor = None


class FlowCreated(BaseModel):
    """A flow that was created by this call, or by an earlier one with the same key."""

    id: fields.Id = described("The flow's id.", examples=["7"])
    made: bool = described("Whether this call made it; false: an earlier one with the same key.", examples=[True])
    jobs: dict[str, fields.Id] = described(
        "Node to the id of its job, also of those that wait; a mapped node has an id too, and no job.",
        examples=[{"extract": "41", "load": "42"}],
    )


class Flow(BaseModel):
    """A flow now, without its nodes."""

    id: fields.Id = described("The flow's id.", examples=["7"])
    name: str = described("Its name.", examples=["nightly"])
    tenant_id: str = described("The tenant of all its jobs.", examples=["default"])
    state: FlowState = described("How far it is: running, cancelling, or how it ended.")
    on_failure: OnFailure = described("What a node that ends badly does to the rest.", examples=["stop"])
    node_count: int = described("How many nodes it has, with the jobs of mapped nodes.", examples=[3])
    open_count: int = described("How many of them have not ended.", examples=[2])
    failed_count: int = described("How many of them ended badly: failed or cancelled.", examples=[0])
    created_at: datetime = described("When it was created.")
    ended_at: datetime | None = described("When it ended; null: it has not ended.")
    created_by: str | None = described("The key or process that created it.", examples=["key etl"])


class FlowNode(BaseModel):
    """A node of a flow now."""

    id: fields.Id = described("The node's id: that of its first job.")
    name: str = described("Its name; load[3] is the fourth job of the mapped node load.", examples=["load"])
    state: NodeState = described(
        f"One of {', '.join(get_args(NodeState))}; started: its job waits or runs."
    )  # fmt: skip
    job_id: fields.Id | None = described("The job that runs it, after a resume another one; null: it is mapped.")
    type: fields.TypeName
    contract: fields.ContractName
    queue: fields.QueueName
    open: int = described("How many of its parents, or of its own jobs if it is mapped, have not ended.", examples=[0])
    parents: list[fields.Id] = described("The ids of the nodes that must end before it starts.", examples=[["41"]])
    on_failure: OnFailure | None = described("What happens to the rest when it ends badly; null: as the flow says.")
    is_mapped: bool = described("Whether it becomes one job for each item of a list.", examples=[False])
    is_cleanup: bool = described("Whether it runs only when another node ended badly.", examples=[False])
    part_of: fields.Id | None = described("The mapped node that it is a job of; null: none.")
    error: str | None = described("Why it could not be started; null: it could, or waits.")
    job_state: str | None = described("The state of its job, in its contract's words; null: it has none yet.")
    started_at: datetime | None = described("When it was started; null: it was not.")
    finished_at: datetime | None = described("When it ended; null: it has not ended.")


class FlowDetails(Flow):
    """A flow with its nodes, a page at a time."""

    nodes: list[FlowNode] = described("Nodes, each behind its parents; of a mapped node also its jobs.")
    next: str | None = described("The cursor of the next nodes; null: there are no more.", pattern=DIGITS)


class FlowList(BaseModel):
    """Flows, the newest first."""

    flows: list[Flow] = described("The flows of this page.")
    next: str | None = described("The cursor of the next page; null: this is the last page.", pattern=DIGITS)


class FlowCancelled(BaseModel):
    """What cancelling a flow did."""

    flow: Flow = described("The flow.")
    waiting_count: int = described("How many nodes waited, and will not start.", examples=[2])
    job_count: int = described("How many jobs were cancelled, or asked to stop.", examples=[1])
    left: dict[str, str] = described(
        "Node to the reason why its job goes on: its contract has no cancel.", examples=[{}]
    )


class FlowResumed(BaseModel):
    """What resuming a flow did."""

    flow: Flow = described("The flow.")
    jobs: dict[str, fields.Id] = described("Node to the new job that runs it again.", examples=[{"load": "43"}])
    waiting_count: int = described("How many nodes wait again.", examples=[0])
    left: dict[str, str] = described("Node to the reason why it was not run again.", examples=[{}])


class FlowPicture(RootModel[str]):
    """A picture of a flow as it is now, an SVG: a box for each node, its state and duration, and the critical path."""

    root: str = Field(examples=['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"/>'])
