"""What a route is: one row of the table in `route_table.py`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from inspect import cleandoc
from typing import Annotated, Any, get_type_hints

from pydantic import BaseModel, Field

from tenure.http.models.fields import DIGITS
from tenure.jobs.validation import LENGTHS


class JobPath(BaseModel):
    """The path of a route about one job."""

    job_id: Annotated[str, Field(pattern=DIGITS, description="The job's id.", examples=["42"])]


class FlowPath(BaseModel):
    """The path of a route about one flow."""

    flow_id: Annotated[str, Field(pattern=DIGITS, description="The flow's id.", examples=["7"])]


class LetterPath(BaseModel):
    """The path of a route about one dead letter."""

    letter_id: Annotated[str, Field(pattern=DIGITS, description="The dead letter's id.", examples=["7"])]


class ContractPath(BaseModel):
    """The path of a route about one contract."""

    name: Annotated[
        str, Field(max_length=LENGTHS["contract"], description="The contract's name.", examples=["standard"])
    ]


class SchedulePath(BaseModel):
    """The path of a route about one schedule."""

    schedule: Annotated[
        str, Field(max_length=LENGTHS["schedule"], description="The schedule's name.", examples=["report"])
    ]


class OperationPath(BaseModel):
    """The path of a route about one operation on many jobs."""

    operation_id: Annotated[str, Field(pattern=DIGITS, description="The operation's id.", examples=["12"])]


class GroupPath(BaseModel):
    """The path of a route about one cause of dead letters."""

    group: Annotated[
        str, Field(max_length=LENGTHS["group"], description="The cause's fingerprint.", examples=["9f2c41d07ab1e635"])
    ]


class DatasetPath(BaseModel):
    """The path of a route about one dataset."""

    dataset: Annotated[
        str, Field(max_length=LENGTHS["dataset"], description="The dataset's name.", examples=["prices"])
    ]


class GenerationPath(BaseModel):
    """The path of a route about one generation of a dataset."""

    generation_id: Annotated[str, Field(pattern=DIGITS, description="The generation's id.", examples=["17"])]


_PATHS: Mapping[str, type[BaseModel]] = {
    name: model
    for model in (
        JobPath,
        FlowPath,
        LetterPath,
        ContractPath,
        SchedulePath,
        GroupPath,
        OperationPath,
        DatasetPath,
        GenerationPath,
    )
    for name in model.model_fields
}


@dataclass(frozen=True, eq=False)
class Route:
    """One method of one path: who may call it, what it takes, what it answers, and the function that does it.

    The function gets the request, then the body or the query if the route has one. Validation, scopes, error messages
    and the OpenAPI follow from these fields.
    """

    method: str
    path: str
    handler: Callable[..., Awaitable[Any]]
    #: The caller needs one of these scopes; empty: any key; None: no key.
    scopes: tuple[str, ...] | None
    #: What it answers; None: it is not in the OpenAPI.
    answer: type[BaseModel] | None
    #: What it takes; by default the types of the function's parameters `body` and `query`.
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    #: For the OpenAPI: answers with another status than 200, errors beside the usual ones, and a header.
    other_answers: Mapping[int, type[BaseModel]] = field(default_factory=dict)
    errors: tuple[int, ...] = ()
    header: dict[str, Any] | None = None
    #: The operation id, and what the route does; by default the name and docstring of the function.
    name: str = ""
    description: str = ""
    tag: str = ""
    #: The media type of its answer.
    media_type: str = "application/json"

    def __post_init__(self) -> None:
        if not self.name:
            types = get_type_hints(self.handler)
            found = {"name": self.handler.__name__, "description": cleandoc(self.handler.__doc__ or "")}
            for name, value in {**found, "body": types.get("body"), "query": types.get("query")}.items():
                object.__setattr__(self, name, value)

    @cached_property
    def path_name(self) -> str | None:
        """The name of the placeholder in the path; None: there is none."""
        return self.path.partition("{")[2].partition("}")[0] or None

    @cached_property
    def path_model(self) -> type[BaseModel] | None:
        """What stands in place of the placeholder."""
        return None if self.path_name is None else _PATHS[self.path_name]

    @cached_property
    def needs_body(self) -> bool:
        """Whether the body must be there: a field of it has no default."""
        return self.body is not None and any(one.is_required() for one in self.body.model_fields.values())
