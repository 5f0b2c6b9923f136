"""What a task takes: a call as a JSON object of parameter name → value, and the call back from it.

    send("a@b.c", subject="hi")  ─ payload ─▶  {"to": "a@b.c", "subject": "hi"}  ─ arguments ─▶  send(to=…, subject=…)

The promise: a wrong call is refused before anything is written, in Python's own words, and so is a value that the
worker could not take back. What was not passed is not stored, so a default that changes later is the one that applies.
`*args` are a list under their own name and `**kwargs` an object under theirs, so no name can clash. A payload that
others wrote, or that an older release left, fits the signature of today or raises ValidationError, which names the
argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from inspect import Parameter
from types import GenericAlias, NoneType, UnionType
from typing import Any, Final, NamedTuple, Union, Unpack, get_args, get_origin

from tenure.errors import BadInput, PermanentError, ResultDoesNotFit, ValidationError
from tenure.jobs.arguments.decode import Reader, hints_of
from tenure.jobs.arguments.encode import Unfit, stored
from tenure.jobs.arguments.node_result import Results, results_of

_ABSENT: Final = object()
_LARGE: Final = 2**63
_SCALARS: Final = frozenset((str, int, float, bool, NoneType))
_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class _Taken(NamedTuple):
    """One parameter, with everything that can be known of it before a call."""

    name: str
    kind: inspect._ParameterKind
    #: Whether it is handed over by position.
    by_position: bool
    default: Any
    #: The classes of JSON values that its hint takes as they are.
    as_is: frozenset[type]
    reader: Reader


class Signature:
    """What a task takes, read once from its function."""

    def __init__(
        self,
        function: Callable[..., Any],
        skip: Container[str] = (),
        *,
        name: str | None = None,
        not_results: Container[Any] = (),
    ) -> None:
        """Read the function.

        skip: the parameters that the worker fills in, by name; name: the task's, by default the function's;
        not_results: classes that the function may return in place of a result.
        """
        self.task: str = name or str(getattr(function, "__name__", type(function).__name__))
        whole = inspect.signature(function)
        given = [parameter for parameter in whole.parameters.values() if parameter.name not in skip]
        self._filled = [parameter.name for parameter in whole.parameters.values() if parameter.name in skip]
        self._shown = whole.replace(parameters=given)
        self._refuse_filled_by_position(whole)
        hints = hints_of(function)
        rest = any(parameter.kind is Parameter.VAR_POSITIONAL for parameter in given)
        self._taken = [_taken(parameter, hints, rest) for parameter in given]
        quick = [(taken, taken.as_is & _SCALARS) for taken in self._taken]
        #: The first of the quick classes is found without a look at the others.
        self._storing = [(taken.name, next(iter(kinds), None), kinds, taken.reader) for taken, kinds in quick]
        self._bind = _binder(given, str(getattr(function, "__qualname__", self.task)))
        self._more = next((taken for taken in self._taken if taken.kind is Parameter.VAR_KEYWORD), None)
        hint = hints.get("return", Any)
        members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        results = tuple(member for member in members if member not in not_results)
        if len(results) < len(members):
            hint = Union[results] if results else None  # noqa: UP007 - a union of what is known now
        #: A function that returns nothing can still have a result: the one that it gave to `complete_in`.
        self._result = Reader(Any if hint is None or hint is NoneType else hint)

    def payload(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], results: dict[str, Results] | None = None
    ) -> dict[str, Any]:
        """The call as a JSON object; raises BadInput where it is no call of this task, or cannot be stored.

        Arguments that are results of a flow's nodes go into `results`; without it they are refused.
        """
        if self._more is not None:
            self._refuse_filled(kwargs, BadInput)
        try:
            bound = self._bind(*args, **kwargs)
        except TypeError as error:  # the binder does nothing but take arguments
            raise BadInput(f"task {self.task!r}: {error}. Next: call it as {self.task}{self._shown}") from None
        payload = {}
        for (name, exact, quick, reader), value in zip(self._storing, bound, strict=False):
            if value is _ABSENT:
                continue
            kind = value.__class__
            if (kind is exact or kind in quick) and (
                (value.isascii() and "\x00" not in value) if kind is str else value is None or -_LARGE < value < _LARGE
            ):
                payload[name] = value  # as nearly all are: it needs no other form, and nothing can be wrong with it
            elif results is not None and (found := results_of(value)) is not None:
                results[name] = found
            else:
                payload[name] = self._stored(name, value, reader)
        return payload

    def check_names(self, option: str, names: Sequence[str]) -> None:
        """Refuse names in an option that are no arguments of the task."""
        known = [taken.name for taken in self._taken]
        if unknown := [name for name in names if name not in known]:
            raise BadInput(
                f"{option} of task {self.task!r} names {unknown[0]!r}, which is no argument of it. "
                f"Next: name some of {', '.join(known) or 'no arguments: it takes none'}"
            )

    def add_defaults(self, payload: dict[str, Any], names: Sequence[str] | None) -> None:
        """Add the defaults of these arguments (None: all) that were not passed, so that both ways to call are equal."""
        for taken in self._taken:
            if taken.name in payload or (names is not None and taken.name not in names):
                continue
            if taken.kind is Parameter.VAR_POSITIONAL:
                payload[taken.name] = []
            elif taken.kind is Parameter.VAR_KEYWORD:
                payload[taken.name] = {}
            else:
                with suppress(BadInput):  # a default that cannot be stored is left out, in every call alike
                    payload[taken.name] = self._stored(taken.name, taken.default, taken.reader)

    def arguments(self, payload: Any) -> tuple[list[Any], dict[str, Any]]:
        """The call back from a payload; raises ValidationError, whose `reason` says whether it was one at all."""
        if not isinstance(payload, dict):
            raise ValidationError(
                f"the payload of task {self.task!r} is no object of arguments, but {payload!r:.60}. "
                f"Next: enqueue it again with {{name: value}} for {self.task}{self._shown}",
                reason="parse_error",
            )
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        found = 0
        for name, kind, by_position, default, as_is, reader in self._taken:
            value = payload.get(name, _ABSENT)
            if value is not _ABSENT:
                found += 1
                if value.__class__ not in as_is:
                    value = self._read(name, value, reader)
                if kind is Parameter.VAR_POSITIONAL:
                    args.extend(value)
                    continue
                if kind is Parameter.VAR_KEYWORD:
                    self._refuse_taken(value)
                    kwargs.update(value)
                    continue
            elif default is Parameter.empty:
                raise self._not_the_arguments(payload)
            elif by_position:
                value = default
            else:
                continue
            if by_position:
                args.append(value)
            else:
                kwargs[name] = value
        if found != len(payload):
            raise self._not_the_arguments(payload)
        return args, kwargs

    def result(self, value: Any) -> Any:
        """A return value as JSON; raises PermanentError, because another run would return the same kind of thing."""
        try:
            return _kept(value, self._result)
        except Unfit as unfit:
            raise PermanentError(
                f"the result{unfit.place} of task {self.task!r} cannot be stored: {unfit.what}. "
                "Next: return plain values, flatten what is nested deep, and store what is large elsewhere"
            ) from None

    def read_result(self, job_id: int, value: Any) -> Any:
        """A stored result as the return annotation says; raises ResultDoesNotFit."""
        try:
            return self._result.read(value)
        except Unfit as unfit:
            raise ResultDoesNotFit(job_id, self.task, unfit.place, unfit.what) from unfit.__cause__
        except RecursionError:
            raise ResultDoesNotFit(job_id, self.task, "", "it is nested too deep") from None

    def _stored(self, name: str, value: Any, reader: Reader) -> Any:
        try:
            kept = _kept(value, reader)
        except Unfit as unfit:
            where = f"argument {name + unfit.place!r} of task {self.task!r}"
            raise BadInput(f"{where} cannot be stored: {unfit.what}. Next: {unfit.instead}") from None
        try:
            reader.read(kept)
        except Unfit as unfit:
            where = f"argument {name + unfit.place!r} of task {self.task!r}"
            raise BadInput(
                f"{where} does not fit its type hint: {unfit.what}. Next: call it as {self.task}{self._shown}"
            ) from None
        return kept

    def _read(self, name: str, value: Any, reader: Reader) -> Any:
        try:
            return reader.read(value)
        except Unfit as unfit:
            raise self._invalid(f"argument {name + unfit.place!r}", unfit.what) from unfit.__cause__
        except RecursionError:
            raise self._invalid(f"argument {name!r}", "it is nested too deep") from None

    def _invalid(self, which: str, what: str) -> ValidationError:
        return ValidationError(
            f"{which} of task {self.task!r} does not fit: {what}. Next: correct it and enqueue it again"
        )

    def _not_the_arguments(self, payload: Mapping[str, Any]) -> ValidationError:
        """What is missing, and what nobody takes."""
        names = {taken.name for taken in self._taken}
        missing = [
            repr(taken.name) for taken in self._taken if taken.default is Parameter.empty and taken.name not in payload
        ]
        strange = [repr(name) for name in payload if name not in names]
        lacks = f"it lacks {', '.join(missing)}" if missing else ""
        has = f"it has {', '.join(strange)}, which the task does not take" if strange else ""
        return self._invalid("the payload", " and ".join(part for part in (lacks, has) if part))

    def _refuse_taken(self, more: Mapping[str, Any]) -> None:
        """Refuse names among `**kwargs` that are parameters: only a payload that others wrote can have them."""
        self._refuse_filled(more, ValidationError)
        for taken in self._taken:
            if taken.name in more and taken.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY):
                raise self._invalid(f"argument {taken.name!r}", "it is given twice")

    def _refuse_filled(self, more: Mapping[str, Any], error: type[BadInput | ValidationError]) -> None:
        for name in self._filled:
            if name in more:
                raise error(f"argument {name!r} of task {self.task!r} is filled in by the worker. Next: leave it out")

    def _refuse_filled_by_position(self, whole: inspect.Signature) -> None:
        """What the worker fills in is handed over by name: its place among positions would depend on the call."""
        rest = any(parameter.kind is Parameter.VAR_POSITIONAL for parameter in whole.parameters.values())
        for name in self._filled:
            kind = whole.parameters[name].kind
            if kind is not Parameter.KEYWORD_ONLY and (rest or kind is not Parameter.POSITIONAL_OR_KEYWORD):
                raise BadInput(
                    f"parameter {name!r} of task {self.task!r} is filled in by the worker, which passes it by name. "
                    f"Next: put it behind the *, as in def {self.task}(…, *, {name})"
                )


def _taken(parameter: Parameter, hints: Mapping[str, Any], rest: bool) -> _Taken:
    """A parameter with its reader; `rest`: a function that takes `*args` is given what stands before by position."""
    hint, default = hints.get(parameter.name, Any), parameter.default
    if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
        default = _ABSENT  # none are needed
        several = (list, hint) if parameter.kind is Parameter.VAR_POSITIONAL else (dict, str, hint)
        hint = get_args(hint)[0] if get_origin(hint) is Unpack else GenericAlias(several[0], several[1:])
    by_position = parameter.kind is Parameter.POSITIONAL_ONLY or (rest and parameter.kind in _BY_POSITION)
    reader = Reader(hint, or_none=default is None)  # a default of None says what many hints forget to say
    return _Taken(parameter.name, parameter.kind, by_position, default, reader.as_is, reader)


class _Source(str):
    """A default as the source of a function shows it."""

    __repr__ = str.__str__


def _binder(parameters: Sequence[Parameter], name: str) -> Callable[..., tuple[Any, ...]]:
    """A function that takes what the task's takes and returns it in order: Python binds, and says what is wrong."""
    absent = _Source("_" * (1 + max((len(each.name) for each in parameters), default=0)))  # no parameter is named so
    stars = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    plain = [
        each.replace(annotation=Parameter.empty, default=each.default if each.default is Parameter.empty else absent)
        for each in parameters
    ]
    # Neither `*args` nor `**kwargs` were passed where they are empty.
    taken = [f"{each.name} or {absent}" if each.kind in stars else each.name for each in parameters]
    made: dict[str, Any] = {absent: _ABSENT}
    exec(f"def bind{inspect.Signature(plain)}: return ({''.join(f'{each}, ' for each in taken)})", made)
    made["bind"].__qualname__ = name
    bind: Callable[..., tuple[Any, ...]] = made["bind"]
    return bind


def _kept(value: Any, reader: Reader) -> Any:
    """The value as JSON; where it has a form only for a hint that turns it back, the hint must show that it does."""
    try:
        try:
            return stored(value)
        except Unfit as unfit:
            if unfit.loosely:
                kept = stored(value, True)
                with suppress(Unfit):
                    if reader.read(kept) == value:
                        return kept
            raise
    except RecursionError:
        raise Unfit("it is nested too deep, or contains itself", "flatten it") from None
