"""Options given by keyword: a misspelt name is refused with the name that was probably meant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, TypeVar

from tenure.errors import BadInput

F = TypeVar("F", bound=Callable[..., Any])


def refuse_unknown(where: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse names of options that are not known; the message says which one was probably meant."""
    for name in given:
        if name not in known:
            similar = get_close_matches(name, known, 1)
            hint = f"did you mean {similar[0]}?" if similar else f"the options are {', '.join(known)}"
            raise BadInput(f"{where} has no option {name!r}. Next: {hint}")


def only_known_options(where: str, elsewhere: Mapping[str, str] = MappingProxyType({})) -> Callable[[F], F]:
    """Make a function raise `BadInput` for an option that it has not, in place of Python's `TypeError`.

    `elsewhere` maps options that belong to another function to what to do about them.
    """

    def decorate(function: F) -> F:
        parameters = list(inspect.signature(function).parameters.values())
        named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        known = {each.name: None for each in parameters if each.kind in named and each.name != "self"}
        only = inspect.Parameter.POSITIONAL_ONLY
        by_position = [each.name for each in parameters if each.kind is only and each.name != "self"]

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            if not kwargs.keys() <= known.keys():
                for name in kwargs.keys() & elsewhere.keys():
                    raise BadInput(f"{where} has no option {name!r}. Next: {elsewhere[name]}")
                for name in filter(by_position.__contains__, kwargs):
                    call = f"{where}({', '.join(by_position)}, …)"
                    raise BadInput(f"{where} has no option {name!r}. Next: give it without its name: {call}")
                refuse_unknown(where, kwargs, known)
            return function(*args, **kwargs)

        return checked  # type: ignore[return-value]

    return decorate
