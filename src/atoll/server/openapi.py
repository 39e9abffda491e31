"""The OpenAPI document, made from the routes and the structs themselves."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec

from atoll import __version__
from atoll.protocol.errors import ErrorBody
from atoll.protocol.ids import MAX_ID_LENGTH
from atoll.protocol.sandboxes import MUST_EXIST
from atoll.server.api_route import EVENT_STREAM, ApiRoute
from atoll.server.queries import Parameter, parameters_of
from atoll.server.routes import ROUTES

_PARAMETER = re.compile(r"{(\w+)}")
_PARAMETERS = {
    "id": {
        "type": "string",
        "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        "maxLength": MAX_ID_LENGTH,
        "description": f"up to {MAX_ID_LENGTH} lower-case letters, digits and hyphens, with no hyphen at either end",
    },
    "name": {"type": "string", "minLength": 1, "maxLength": 80},
}
_ANY_ID = {"type": "string", "minLength": 1, "maxLength": MAX_ID_LENGTH}
_MEANING = {200: "OK", 201: "It is new", 204: "Done", 206: "The part that was asked for"}


@cache
def document() -> dict[str, Any]:
    named = (shape for route in ROUTES for shape in (route.body, route.events, *route.answers.values()))
    shapes = [shape for shape in named if _has_schema(shape)]
    _, components = msgspec.json.schema_components([*shapes, ErrorBody], ref_template="#/components/schemas/{name}")
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Atoll",
            "version": __version__,
            "description": "Isolated Linux computers, addressed by an id. A sandbox is made when its id is first used; "
            f"with the header `{MUST_EXIST[0]}: {MUST_EXIST[1]}` only by PUT, and what needs one is SANDBOX_NOT_FOUND.",
        },
        "servers": [{"url": "/", "description": "the server that this document is from"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _has_schema(shape: Any) -> bool:
    return shape is not None and shape is not bytes


def _operation(route: ApiRoute) -> dict[str, Any]:
    queries = () if route.query is None else parameters_of(route.query)
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": [*map(_path_parameter, _PARAMETER.findall(route.path)), *map(_query_parameter, queries)],
        "responses": {str(status): _answer(route, status, shape) for status, shape in route.answers.items()},
    }
    operation["responses"]["default"] = {
        "description": "What went wrong, with a code, the value that failed, and what to do",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}},
    }
    if route.body is not None:
        operation["requestBody"] = {
            "required": _must_be_given(route.body),
            "content": {route.body_type: {"schema": _schema(route.body)}},
        }
    return operation


def _must_be_given(body: Any) -> bool:
    """Whether a request without it is refused: no body is an empty object."""
    is_struct = isinstance(body, type) and issubclass(body, msgspec.Struct)
    return body is bytes or (is_struct and any(field.required for field in msgspec.structs.fields(body)))


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": _PARAMETERS.get(name, _ANY_ID)}


def _query_parameter(query: Parameter) -> dict[str, Any]:
    return {"name": query.name, "in": "query", "schema": query.schema, "description": query.description}


def _answer(route: ApiRoute, status: int, shape: Any) -> dict[str, Any]:
    if shape is None:
        return {"description": _MEANING[status]}
    content = {route.answer_type: {"schema": _schema(shape)}}
    if route.events:
        event = {"contentMediaType": "application/json", "contentSchema": _schema(route.events)}
        content[EVENT_STREAM] = {"schema": {"type": "string", **event}}
    return {"description": _MEANING[status], "content": content}


def _schema(shape: Any) -> dict[str, Any]:
    if shape is bytes:
        return {"type": "string", "format": "binary"}
    (schema,), _ = msgspec.json.schema_components([shape], ref_template="#/components/schemas/{name}")
    return schema
