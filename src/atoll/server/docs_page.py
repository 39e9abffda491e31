"""The page at /docs: the OpenAPI document for people, in one file that loads nothing from elsewhere."""

from __future__ import annotations

import json
import re
from functools import cache
from html import escape
from typing import Any

from atoll.server.openapi import document

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881;
  --link: #0b6bcb; --get: #1f7a35; --post: #0a6f91; --put: #8a5a00; --delete: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --link: #7ab7ff; --get: #2e8b45; --post: #1583a8; --put: #9a6a10; --delete: #c23a32; }
}
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto 6rem; padding: 0 1rem; }
a { color: var(--link); text-underline-offset: .15em; }
h1 small { font-weight: normal; opacity: .6; }
h2 { margin-top: 2.5rem; text-transform: capitalize; }
details { border: 1px solid var(--line); border-radius: .5rem; margin: .5rem 0; }
details[open] > summary { border-bottom: 1px solid var(--line); }
summary { padding: .5rem .75rem; cursor: pointer; display: flex; gap: .25rem .75rem; flex-wrap: wrap;
  align-items: baseline; border-radius: .5rem; }
summary:hover { background: var(--soft); }
summary span { opacity: .8; }
details > div { padding: .25rem .75rem .75rem; scroll-margin-top: 4rem; }
b.method { font: bold .75rem/1 ui-monospace, monospace; color: #fff; padding: .3rem .45rem; border-radius: .3rem;
  min-width: 3.25rem; text-align: center; }
b.get { background: var(--get); } b.post { background: var(--post); } b.delete { background: var(--delete); }
b.put, b.patch { background: var(--put); }
code, pre { font-family: ui-monospace, monospace; font-size: .9rem; overflow-wrap: anywhere; }
pre { background: var(--soft); padding: .75rem; border-radius: .4rem; overflow-x: auto; white-space: pre-wrap; }
h3 { font-size: .8rem; margin: 1rem 0 .25rem; opacity: .7; text-transform: uppercase; letter-spacing: .05em; }
table { border-collapse: collapse; width: 100%; }
td { padding: .3rem .75rem .3rem 0; border-top: 1px solid var(--line); vertical-align: baseline; }
tr:first-child td { border-top: 0; }
td:first-child { white-space: nowrap; width: 1%; padding-right: 1.5rem; }
td small { opacity: .65; }
"""
JSON = "application/json"
_FIRST = """atoll serve --port 7070 &
key=$(atoll key create laptop)
curl -H "Authorization: Bearer $key" --json '{"command": "echo hello"}' \\
  http://127.0.0.1:7070/v1/sandboxes/user-123/exec"""


@cache
def page() -> str:
    api = document()
    sections: dict[str, list[str]] = {}
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            sections.setdefault(operation["tags"][0], []).append(_operation(method, path, operation))
    body = "".join(f"<h2>{escape(tag)}</h2>{''.join(operations)}" for tag, operations in sections.items())
    shapes = "".join(_shape(name, schema) for name, schema in sorted(api["components"]["schemas"].items()))
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Atoll API</title><style>{_STYLE}</style>"
        f"<h1>Atoll API <small>{escape(api['info']['version'])}</small></h1>"
        f"<p>{escape(api['info']['description'])} The same for programs: <a href=/openapi.json>/openapi.json</a>.</p>"
        f"<pre>{escape(_FIRST)}</pre>"
        f"<p>Over TCP every request needs a key; on the Unix socket, which is root's, none does. An error is an "
        f"{_link('ErrorBody')}: a code, a message with the value that failed, and what to do.</p>"
        f"{body}<h2>Shapes</h2>{shapes}</html>"
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    parts = []
    if operation["parameters"]:
        parts += ["<h3>Parameters</h3>", _table(map(_parameter, operation["parameters"]))]
    if body := operation.get("requestBody"):
        parts += ["<h3>Body</h3>", _table(_contents("", body))]
    parts.append("<h3>Answers</h3>")
    parts.append(_table(row for status, answer in operation["responses"].items() for row in _contents(status, answer)))
    return (
        f"<details><summary><b class='method {method}'>{method.upper()}</b><code>{escape(path)}</code>"
        f"<span>{escape(operation['summary'])}</span></summary><div>{''.join(parts)}</div></details>"
    )


def _parameter(item: dict[str, Any]) -> tuple[str, str]:
    about = item.get("description") or item["schema"].get("description", "")
    return _name(
        item["name"], is_required=item.get("required", False)
    ), f"{_type(item['schema'])} {_default(item['schema'])} {_small(about)}"


def _contents(status: str, answer: dict[str, Any]) -> list[tuple[str, str]]:
    """A row for each media type; JSON goes without saying."""
    if "content" not in answer:
        return [(f"<code>{escape(status)}</code>", escape(answer["description"]))]
    rows = []
    for media_type, content in answer["content"].items():
        name = escape({"default": "other"}.get(status, status) or media_type)
        about = answer["description"] if status and media_type == JSON else media_type if status else ""
        rows.append((f"<code>{name}</code>", f"{_type(content['schema'])} {_small(about)}"))
    return rows


def _shape(name: str, schema: dict[str, Any]) -> str:
    described = _prose(schema.get("description", "").split("\n")[0])
    required = schema.get("required", ())
    rows = [
        (_name(field, is_required=field in required), f"{_type(of)} {_default(of)}")
        for field, of in schema.get("properties", {}).items()
    ]
    # The id is inside, because following a link opens what the target is in, not the target.
    return (
        f"<details><summary><code>{escape(name)}</code><span>{described}</span></summary>"
        f"<div id='{escape(name)}'>{_table(rows) if rows else _type(schema)}</div></details>"
    )


def _type(schema: dict[str, Any]) -> str:
    """A JSON schema in a few words, with links to the shapes it names."""
    match schema:
        case {"$ref": target}:
            return _link(target.rpartition("/")[2])
        case {"anyOf": choices}:
            return " or ".join(map(_type, choices))
        case {"enum": values}:
            return " or ".join(f"<code>{escape(json.dumps(value))}</code>" for value in values)
        case {"contentSchema": each}:
            return f"server-sent events, the data of each {_article(each)} {_type(each)}"
        case {"type": "array", "items": items}:
            return f"list of {_type(items)}"
        case {"type": "object", "additionalProperties": dict(each)} if each:
            return f"map of {_type(each)}"
        case {"format": "binary"}:
            return "bytes"
    return escape(schema.get("type", "anything"))


def _article(schema: dict[str, Any]) -> str:
    return "an" if schema["$ref"].rpartition("/")[2][0] in "AEIOU" else "a"


def _default(schema: dict[str, Any]) -> str:
    default = schema.get("default")
    return _small(f"{json.dumps(default)} if not given") if default else ""


def _table(rows: Any) -> str:
    return f"<table>{''.join(f'<tr><td>{name}<td>{value}' for name, value in rows)}</table>"


def _name(name: str, *, is_required: bool) -> str:
    return f"<code>{escape(name)}</code>{' <small>required</small>' if is_required else ''}"


def _link(name: str) -> str:
    return f"<a href='#{escape(name)}'>{escape(name)}</a>"


def _small(text: str) -> str:
    return f"<small>{escape(text)}</small>" if text else ""


def _prose(text: str) -> str:
    """Backticks mean code, as in the docstrings that this comes from."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
