"""What stands for the result of a flow's node in a call: the result itself is known when the node has ended.

load.call(rows)                a whole argument
load.call([left, right])       an argument that is a list of results
"""

from __future__ import annotations

from typing import Any


class NodeResult:
    """The result of a node, or each item of the list that is its result."""

    __slots__ = ("flow", "is_each", "name")

    def __init__(self, flow: object, name: str, is_each: bool = False) -> None:
        #: The flow that the node belongs to.
        self.flow = flow
        self.name = name
        self.is_each = is_each

    def __repr__(self) -> str:
        return f"<{'each item of ' if self.is_each else ''}the result of node {self.name!r}>"


#: What an argument can be instead of a value.
Results = NodeResult | list[NodeResult]


def results_of(value: Any) -> Results | None:
    """The argument's results, if it is one or a list of nothing else."""
    if isinstance(value, NodeResult):
        return value
    if isinstance(value, (list, tuple)) and value:
        found = [part for part in value if isinstance(part, NodeResult) and not part.is_each]
        return found if len(found) == len(value) else None
    return None
