"""The page at /docs: the OpenAPI document for people, in one file that loads nothing from elsewhere."""

from __future__ import annotations

import json
from functools import cache
from html import escape
from typing import Any

from atoll.server.openapi import document

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --accent: #0a7ea4; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 small { font-weight: normal; opacity: .6; }
h2 { margin-top: 2.5rem; text-transform: capitalize; border-bottom: 1px solid var(--line); }
details { border: 1px solid var(--line); border-radius: .5rem; margin: .5rem 0; }
summary { padding: .5rem .75rem; cursor: pointer; display: flex; gap: .75rem; flex-wrap: wrap; align-items: baseline; }
details > div { padding: 0 .75rem .75rem; }
b.method { font: bold .8rem/1 ui-monospace, monospace; color: #fff; background: var(--accent); padding: .3rem .45rem;
  border-radius: .3rem; min-width: 3.5rem; text-align: center; }
b.delete { background: #b3261e; } b.put, b.patch { background: #8a5a00; } b.get { background: #2e7d32; }
code, pre { font-family: ui-monospace, monospace; font-size: .9rem; }
pre { background: var(--soft); padding: .75rem; border-radius: .4rem; overflow-x: auto; margin: .25rem 0 .75rem; }
h3 { font-size: .9rem; margin: .75rem 0 .25rem; opacity: .75; }
"""


@cache
def page() -> str:
    api = document()
    sections: dict[str, list[str]] = {}
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            sections.setdefault(operation["tags"][0], []).append(_operation(method, path, operation))
    body = "".join(f"<h2>{escape(tag)}</h2>{''.join(operations)}" for tag, operations in sections.items())
    schemas = "".join(_schema(name, schema) for name, schema in sorted(api["components"]["schemas"].items()))
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Atoll API</title><style>{_STYLE}</style>"
        f"<h1>Atoll API <small>{escape(api['info']['version'])}</small></h1>"
        f"<p>{escape(api['info']['description'])} The same for programs: <a href=/openapi.json>/openapi.json</a>.</p>"
        f"<p>Over TCP every request needs <code>Authorization: Bearer KEY</code>; make a key with "
        f"<code>atoll key create</code>. Errors have a code, a message and a remedy.</p>"
        f"{body}<h2>Shapes</h2>{schemas}</html>"
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    parts = []
    if operation["parameters"]:
        parts += ["<h3>Parameters</h3>", _pre({item["name"]: item["schema"] for item in operation["parameters"]})]
    if body := operation.get("requestBody"):
        parts += ["<h3>Body</h3>", _pre(body["content"])]
    for status, answer in operation["responses"].items():
        content = answer.get("content")
        parts += [f"<h3>{escape(status)}: {escape(answer['description'])}</h3>", _pre(content) if content else ""]
    return (
        f"<details><summary><b class='method {method}'>{method.upper()}</b><code>{escape(path)}</code>"
        f"<span>{escape(operation['summary'])}</span></summary><div>{''.join(parts)}</div></details>"
    )


def _schema(name: str, schema: dict[str, Any]) -> str:
    described = escape(schema.get("description", "").split("\n")[0])
    return (
        f"<details id='{escape(name)}'><summary><code>{escape(name)}</code><span>{described}</span></summary>"
        f"<div>{_pre(schema.get('properties', schema))}</div></details>"
    )


def _pre(value: Any) -> str:
    return f"<pre>{escape(json.dumps(value, indent=2, ensure_ascii=False))}</pre>"
