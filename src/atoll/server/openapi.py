"""The OpenAPI document, made from the table of routes and the structs themselves."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec

from atoll import __version__
from atoll.protocol.errors import ErrorBody
from atoll.protocol.ids import MAX_ID_LENGTH
from atoll.protocol.sandboxes import MUST_EXIST
from atoll.server.routes import ROUTES, ApiRoute
from atoll.server.sandboxes import EVENT_STREAM

_PARAMETER = re.compile(r"{(\w+)}")
_PARAMETERS = {
    "id": {
        "type": "string",
        "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        "maxLength": MAX_ID_LENGTH,
        "description": f"up to {MAX_ID_LENGTH} lower-case letters, digits and hyphens, with no hyphen at either end",
    },
    "name": {"type": "string", "minLength": 1, "maxLength": 80},
    "session_id": {"type": "string", "minLength": 1, "maxLength": MAX_ID_LENGTH},
    "process_id": {"type": "string", "minLength": 1, "maxLength": MAX_ID_LENGTH},
    "terminal_id": {"type": "string", "minLength": 1, "maxLength": MAX_ID_LENGTH},
}
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
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}{re.sub(r'[^a-z]+', '_', route.path)}".rstrip("_"),
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": [*map(_path_parameter, _PARAMETER.findall(route.path)), *map(_query_parameter, route.queries)],
        "responses": {str(status): _answer(route, status, shape) for status, shape in route.answers.items()},
    }
    operation["responses"]["default"] = {
        "description": "What went wrong, with a code, the value that failed, and what to do",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}},
    }
    if route.body is not None:
        operation["requestBody"] = {
            "required": route.body is bytes or "command" in getattr(route.body, "__struct_fields__", ()),
            "content": {route.body_type: {"schema": _schema(route.body)}},
        }
    return operation


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": _PARAMETERS[name]}


def _query_parameter(query: Any) -> dict[str, Any]:
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
