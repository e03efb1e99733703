"""The API reference: plain HTML and CSS rendered from the OpenAPI document; no script, no other origin."""

from __future__ import annotations

import base64
import hashlib
import re
from html import escape
from importlib.resources import files
from typing import Any, Final

from holdfast.http.kit.errors import ERROR_TABLE

Json = dict[str, Any]

_CSS: Final = files("holdfast.http.kit").joinpath("docs.css").read_text(encoding="utf-8")

DOCS_CSP: Final = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; style-src 'sha256-"
    + base64.b64encode(hashlib.sha256(_CSS.encode()).digest()).decode("ascii")
    + "'"
)


def docs_page(document: Json) -> str:
    """Render the page for a document of :mod:`holdfast.http.kit.openapi`."""
    info, tags = document["info"], [tag["name"] for tag in document["tags"]]
    operations = [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    menu, body = [], []
    for tag in tags:
        ours = [each for each in operations if tag in each[2]["tags"]]
        links = "".join(_link(*each) for each in ours)
        menu.append(f"<h2>{escape(tag)}</h2><ul>{links}</ul>")
        body.append(f"<h2>{escape(tag)}</h2>" + "".join(_operation(*each) for each in ours))
    shapes = "".join(_shape(name, schema) for name, schema in sorted(document["components"]["schemas"].items()))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])} API</title><style>{_CSS}</style></head><body><div class=frame>"
        f"<nav aria-label=Endpoints><p class=name>{escape(info['title'])}</p>"
        '<ul><li><a href="#errors">Error codes</a></li><li><a href="#shapes">Shapes</a></li>'
        f'<li><a href="/openapi.json">OpenAPI document</a></li></ul>{"".join(menu)}</nav>'
        f"<main><h1>{escape(info['title'])} <small>version {escape(info['version'])}</small></h1>"
        f"<p class=soft>Base address <code>{escape(document['servers'][0]['url'])}</code></p>"
        f"{_prose(info['description'])}{''.join(body)}"
        f'<h2 id="errors">Error codes</h2>{_error_table()}'
        f'<h2 id="shapes">Shapes</h2>{shapes}</main></div></body></html>'
    )


def _link(method: str, path: str, operation: Json) -> str:
    return (
        f'<li><a href="#{escape(operation["operationId"])}"><span class="method {method}">{method.upper()}</span>'
        f"<span>{_foldable(path)}</span></a></li>"
    )


def _foldable(path: str) -> str:
    """Return a path that a narrow column wraps between its parts rather than inside one."""
    return escape(path).replace("/", "/<wbr>").replace("_", "_<wbr>")


def _operation(method: str, path: str, operation: Json) -> str:
    parts = [
        f'<section id="{escape(operation["operationId"])}"><h3>'
        f'<span class="method {method}">{method.upper()}</span>'
        f"<span class=path>{escape(path)}</span><span class=pill>{_credential(operation)}</span></h3>"
        f"<p>{escape(operation['summary'])}.</p>"
    ]
    if operation["parameters"]:
        rows = "".join(
            f"<tr><td><code>{escape(each['name'])}</code></td><td class=soft>{escape(each['in'])}"
            f"{', required' if each['required'] else ''}</td><td>{escape(each['description'])}</td></tr>"
            for each in operation["parameters"]
        )
        parts.append(f"<h4>Parameters</h4><div class=scroll><table>{rows}</table></div>")
    if "requestBody" in operation:
        parts.append(f"<h4>Body</h4><p>{_content(operation['requestBody']['content'])}</p>")
    rows = "".join(
        f"<tr><td><code>{escape(status)}</code></td><td>{_inline(response['description'])}"
        f"{' ' + _content(response['content']) if int(status) < 400 else ''}</td></tr>"
        for status, response in operation["responses"].items()
    )
    parts.append(f"<h4>Responses</h4><div class=scroll><table>{rows}</table></div></section>")
    return "".join(parts)


def _credential(operation: Json) -> str:
    names = {"session": "session token", "api_key": "API key", "operator": "operators' token"}
    wanted = [names.get(name, "signature") for entry in operation["security"] for name in entry]
    if not wanted:
        return "no credential"
    return ("optional " if {} in operation["security"] else "") + " or ".join(wanted)


def _content(content: Json) -> str:
    return ", ".join(
        _type(entry["schema"]) if "json" in kind else f"<code>{escape(kind)}</code>"
        for kind, entry in content.items()
    )


def _shape(name: str, schema: Json) -> str:
    required = set(schema.get("required", ()))
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code></td><td>{_type(kind)}</td>"
        f"<td class=soft>{'' if field in required else 'optional'}</td></tr>"
        for field, kind in schema.get("properties", {}).items()
    )
    return (
        f'<section id="shape-{escape(name)}"><h3><span class=path>{escape(name)}</span></h3>'
        f"<p>{_inline(_one_line(schema.get('description', '')))}</p>"
        f"<div class=scroll><table>{rows}</table></div></section>"
    )


def _type(schema: Json) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#shape-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map of {_type(schema['additionalProperties'])}"
    return escape(schema.get("format") or schema.get("type") or "any value")


def _error_table() -> str:
    rows = "".join(
        f"<tr><td><code>{escape(code)}</code></td><td>{row.status}</td><td class=soft>{escape(row.type)}</td></tr>"
        for code, row in sorted(ERROR_TABLE.items(), key=lambda item: (item[1].status, item[0]))
    )
    head = "<tr><th>Code</th><th>Status</th><th>Type</th></tr>"
    return f"<section><div class=scroll><table>{head}{rows}</table></div></section>"


def _prose(text: str) -> str:
    return "".join(f"<p>{_inline(_one_line(paragraph))}</p>" for paragraph in text.strip().split("\n\n"))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _inline(text: str) -> str:
    """Render the code and bold of the Markdown that descriptions use."""
    marked = re.sub(r"``?([^`]+)``?", r"<code>\1</code>", escape(text, quote=False))
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", marked)
