"""Queries of requests: a struct says what there may be, and so both parses and documents it.

1. A parameter is a field. Its type says what is taken, its `Meta` the bounds and what it is for.
2. A parameter that is there twice is refused, unless its field is a tuple. One that no field names is passed over:
   a newer client may have more to say.
3. Bytes that are not UTF-8 stay what they are, by `surrogateescape`: they may be of a file's name.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec import inspect

from atoll.server.problems import bad_request

MAX_PARAMETERS = 100
MAX_NUMBER = 10**18 - 1  # unless a field has a bound of its own
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a route. Every one may be left out, so each has a default."""


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """A field of a query, as the parser and as the OpenAPI document see it."""

    name: str
    kind: inspect.Type
    schema: dict[str, Any]
    description: str


Q = TypeVar("Q", bound=Query)


def parse_query(shape: type[Q], query: bytes) -> Q:
    """The text that follows a question mark, as `shape`."""
    given = split_query(query)
    known = (parameter for parameter in parameters_of(shape) if parameter.name in given)
    return shape(**{parameter.name: _read(parameter, given[parameter.name]) for parameter in known})


def split_query(query: bytes) -> dict[str, list[str]]:
    """All values of each name. A byte counts the same as it is and by a percent sign."""
    text = query.decode(errors="surrogateescape")
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="surrogateescape", max_num_fields=MAX_PARAMETERS)
    except ValueError as cause:
        raise bad_request(f"the query makes no sense: {cause}") from cause
    given: dict[str, list[str]] = {}
    for name, value in pairs:
        given.setdefault(name, []).append(value)
    return given


@cache
def parameters_of(shape: type[Query]) -> tuple[Parameter, ...]:
    _, components = msgspec.json.schema_components([shape])
    schemas = components[shape.__name__]["properties"]
    return tuple(
        Parameter(
            name=field.name,
            kind=_plain(inspect.type_info(field.type)),
            schema=_plain_schema(schemas[field.name], components),
            description=schemas[field.name]["description"],
        )
        for field in msgspec.structs.fields(shape)
    )


def _plain(kind: inspect.Type) -> inspect.Type:
    """A field's own type. What is left out is None, for which a query has no word."""
    if isinstance(kind, inspect.Metadata):
        return _plain(kind.type)
    if isinstance(kind, inspect.UnionType):
        (kind,) = (choice for choice in kind.types if not isinstance(choice, inspect.NoneType))
    return kind


def _plain_schema(schema: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    """Likewise as JSON Schema, with what it refers to put in its place."""
    (choice,) = (each for each in schema.get("anyOf", [schema]) if each.get("type") != "null")
    if "$ref" in choice:
        choice = {"type": "string", "enum": components[choice["$ref"].rpartition("/")[2]]["enum"]}
    merged = {
        name: value for name, value in {**schema, **choice}.items() if name not in ("anyOf", "description", "$ref")
    }
    if merged.get("default") in (None, ()):
        merged.pop("default", None)
    return merged


def _read(parameter: Parameter, values: list[str]) -> Any:
    """A field's value."""
    if isinstance(parameter.kind, inspect.VarTupleType):
        return tuple(values)
    if len(values) > 1:
        raise bad_request(f"{parameter.name} is given {len(values)} times", "Give it once.")
    try:
        return _convert(values[0], parameter.kind)
    except (ValueError, KeyError) as cause:
        expected = _expected(parameter.kind)
        message = f"{parameter.name}={values[0]!r:.100} is not {expected}"
        raise bad_request(message, f"Give {expected}: {parameter.description}.") from cause


def _convert(text: str, kind: inspect.Type) -> Any:
    match kind:
        case inspect.BoolType():
            return _FLAGS[text.lower()]
        case inspect.IntType():
            return _number(text, *_bounds(kind))
        case inspect.EnumType():
            return kind.cls(text)
    return text


def _number(text: str, lowest: int, highest: int) -> int:
    """Digits of ASCII, and few of them: Python takes more for a number."""
    if not text.isascii() or not text.isdigit() or len(text) > len(str(MAX_NUMBER)):
        raise ValueError(text)
    number = int(text)
    if not lowest <= number <= highest:
        raise ValueError(text)
    return number


def _bounds(kind: inspect.IntType) -> tuple[int, int]:
    return (0 if kind.ge is None else kind.ge), (MAX_NUMBER if kind.le is None else kind.le)


def _expected(kind: inspect.Type) -> str:
    match kind:
        case inspect.IntType():
            return "a number from {} to {}".format(*_bounds(kind))
        case inspect.EnumType():
            return f"one of {', '.join(str(choice.value) for choice in kind.cls)}"
    return "true or false"
