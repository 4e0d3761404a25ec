"""What the spec language allows at a place: read off the Pydantic models, never typed out twice."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel
from pydantic.fields import FieldInfo

from kgen.diagnostics import joined
from kgen.spec.model import SpecFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgen.diagnostics import Loc


@dataclass(frozen=True)
class FieldType:
    """An annotation with its constraints (``annotated_types`` objects)."""

    annotation: Any
    constraints: tuple[Any, ...] = ()

    @staticmethod
    def of(annotation: Any, constraints: tuple[Any, ...] = ()) -> FieldType:
        """Unwrap ``Annotated`` and gather the constraints in it."""
        while get_origin(annotation) is Annotated:
            annotation, *extra = get_args(annotation)
            for item in extra:
                constraints += tuple(item.metadata) if isinstance(item, FieldInfo) else (item,)
        return FieldType(annotation, constraints)

    @staticmethod
    def of_field(field: FieldInfo) -> FieldType:
        """The type of a model's field."""
        return FieldType.of(field.annotation, tuple(field.metadata))

    @property
    def origin(self) -> Any:
        """``Union``, ``Literal``, ``dict``, ``tuple`` or ``None``."""
        origin = get_origin(self.annotation)
        return Union if origin is types.UnionType else origin

    @property
    def is_model(self) -> bool:
        """One model, whose fields are known."""
        return isinstance(self.annotation, type) and issubclass(self.annotation, BaseModel)

    @property
    def members(self) -> tuple[FieldType, ...]:
        """The alternatives of a union, ``None`` left out; the type itself if it is no union."""
        if self.origin is not Union:
            return (self,)
        return tuple(FieldType.of(a) for a in get_args(self.annotation) if a is not type(None))

    @property
    def models(self) -> dict[str, type[BaseModel]]:
        """The models of a tagged union (or of one model) by the value of ``kind``."""
        found: dict[str, type[BaseModel]] = {}
        for member in self.members:
            if member.is_model and "kind" in member.annotation.model_fields:
                tags = get_args(member.annotation.model_fields["kind"].annotation)
                found |= dict.fromkeys(tags, member.annotation)
        return found

    @property
    def is_tagged_union(self) -> bool:
        """A union of models told apart by ``kind``."""
        return self.origin is Union and bool(self.models)

    def choices(self) -> tuple[str, ...]:
        """The words allowed as a value."""
        words: list[str] = []
        for member in self.members:
            if member.origin is Literal:
                words += [word for word in get_args(member.annotation) if isinstance(word, str)]
        return tuple(words)

    def child(self, key: str | int) -> FieldType | None:
        """The type below ``key``, ``None`` if there is none."""
        if self.is_model:
            field = self.annotation.model_fields.get(key)
            return FieldType.of_field(field) if field is not None else None
        if self.origin in (dict, tuple):
            arguments = get_args(self.annotation)
            return FieldType.of(arguments[1] if self.origin is dict else arguments[0])
        return None

    def allowed(self) -> str:
        """What a value must be, in words: ``an integer from 8 to 512, a multiple of 8``."""
        if self.models:
            return f"a mapping of kind {joined(tuple(self.models))}"
        return joined([word for member in self.members for word in member._allowed(self.constraints)])

    def _allowed(self, outer: tuple[Any, ...]) -> Iterator[str]:
        constraints = self.constraints + outer
        if self.origin is Literal:
            yield from map(str, get_args(self.annotation))
        elif self.origin is tuple:
            yield f"a list of at least one of {', '.join(get_args(get_args(self.annotation)[0]))}"
        elif self.origin is dict:
            yield "a mapping with at least one entry"
        elif self.is_model:
            yield "a mapping"
        elif self.annotation is bool:
            yield "true or false"
        elif self.annotation is str and any(isinstance(c, AfterValidator) for c in constraints):
            yield "a name of lowercase letters, digits and _"
        elif self.annotation is str:
            yield "text" + _limits(constraints, "characters")
        else:
            yield ("an integer" if self.annotation is int else "a number") + _limits(constraints, "")


@dataclass(frozen=True)
class Place:
    """Where Pydantic found a fault: the path of keys, and the types of the parent and of the value."""

    loc: Loc
    owner: FieldType | None
    type: FieldType | None
    is_key: bool = False  # the fault is in the last key of ``loc`` itself


ROOT = FieldType.of(SpecFile)


def place(pydantic_loc: Loc) -> Place:
    """Pydantic's location without the tags of unions that it puts between the keys."""
    loc: list[str | int] = []
    owner: FieldType | None = None
    current: FieldType | None = ROOT
    for step in pydantic_loc:
        if current is None:
            break
        if current.origin is not None and current.origin not in (dict, tuple):
            if step in current.models:
                current = FieldType.of(current.models[str(step)])
                continue
            # Not a tag: "[key]" marks a fault in a mapping's key, the rest are alternatives
            # of a plain union (`num_splits` is an integer or a word).
            return Place(tuple(loc), owner, current, is_key=step == "[key]")
        loc.append(step)
        owner, current = current, current.child(step)
    return Place(tuple(loc), owner, current)


def type_at(loc: Loc, data: Any) -> FieldType | None:
    """The type at a path of keys; the ``kind`` in ``data`` decides between the models of a union."""
    current = ROOT
    for step in loc:
        data = below(data, step)
        child = current.child(step)
        if child is None:
            return None
        current = _decided(child, data)
    return current


def _decided(kind: FieldType, data: Any) -> FieldType:
    tag = data.get("kind") if isinstance(data, dict) else None
    return FieldType.of(kind.models[tag]) if isinstance(tag, str) and tag in kind.models else kind


def below(data: Any, step: str | int) -> Any:
    """The value under a key or an index, ``None`` if there is none."""
    if isinstance(data, dict):
        return data.get(step)
    return data[step] if isinstance(data, list) and isinstance(step, int) and step < len(data) else None


def at(data: Any, loc: Loc) -> Any:
    """The value at a path of keys, ``None`` if there is none."""
    for step in loc:
        data = below(data, step)
    return data


def _limits(constraints: tuple[Any, ...], unit: str) -> str:
    """The bounds, as words that follow the noun."""
    bounds: dict[str, Any] = {}
    for constraint in constraints:
        for name in ("ge", "gt", "le", "multiple_of", "min_length", "max_length"):
            value = getattr(constraint, name, None)
            if value is not None:
                bounds[name] = value
    low, high = (bounds.get("ge", bounds.get("min_length")), bounds.get("le", bounds.get("max_length")))
    if unit:
        return f" of {low} to {high} {unit}" if low is not None and high is not None else ""
    words = (
        f" from {low} to {high}"
        if low is not None and high is not None
        else f" of at least {low}"
        if low is not None
        else ""
    )
    if "gt" in bounds:
        words = f" above {_number(bounds['gt'])}" + (f" and at most {_number(high)}" if high is not None else "")
    if "multiple_of" in bounds:
        words += f" and a multiple of {bounds['multiple_of']}"
    return words


def _number(value: float) -> str:
    return f"{value:g}" if value != int(value) else f"{int(value):,}"
