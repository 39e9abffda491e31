"""The OpenAPI document, made from the table of routes and the structs themselves."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec

from atoll import __version__
from atoll.protocol.errors import ErrorBody
from atoll.protocol.ids import MAX_ID_LENGTH
from atoll.server.routes import ROUTES, ApiRoute

_PARAMETER = re.compile(r"{(\w+)}")
_PARAMETERS = {
    "id": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", "maxLength": MAX_ID_LENGTH},
    "session_id": {"type": "string", "minLength": 1, "maxLength": 63},
    "terminal_id": {"type": "string", "minLength": 1, "maxLength": 63},
}


@cache
def document() -> dict[str, Any]:
    shapes = [shape for route in ROUTES for shape in (route.body, *route.answers.values()) if _has_schema(shape)]
    _, components = msgspec.json.schema_components([*shapes, ErrorBody], ref_template="#/components/schemas/{name}")
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Atoll",
            "version": __version__,
            "description": "Isolated Linux computers, addressed by an id.",
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
        "responses": {str(status): _answer(route, shape) for status, shape in route.answers.items()},
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


def _answer(route: ApiRoute, shape: Any) -> dict[str, Any]:
    if shape is None:
        return {"description": "Done"}
    content = {route.answer_type: {"schema": _schema(shape)}}
    if route.also:
        content[route.also] = {"schema": {"type": "string"}}
    return {"description": route.summary, "content": content}


def _schema(shape: Any) -> dict[str, Any]:
    if shape is bytes:
        return {"type": "string", "format": "binary"}
    (schema,), _ = msgspec.json.schema_components([shape], ref_template="#/components/schemas/{name}")
    return schema
