"""Examples of calls in the OpenAPI document, for a shell, in Python and in JavaScript."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from holdfast.http.kit.calls import Auth
from holdfast.http.kit.routes import EVENT_STREAM, Parameter, Route

_CREDENTIALS: Final = {
    Auth.SESSION: "SESSION_TOKEN",
    Auth.API_KEY: "API_KEY",
    Auth.KEY_OR_LINK: "API_KEY",
    Auth.SESSION_OR_KEY: "SESSION_TOKEN",
    Auth.OPERATOR_READ: "OPERATOR_TOKEN",
    Auth.OPERATOR_ACT: "OPERATOR_TOKEN",
    Auth.PROVIDER_WEBHOOK: "PROVIDER_TOKEN",
}
_OPERATORS: Final = "Bearer {OPERATOR_TOKEN}"
_PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")


def code_samples(
    route: Route, address: str, body: object | None, form: Mapping[str, Any] | None
) -> list[dict[str, str]]:
    """Return the ``x-codeSamples`` of a route, with ``body`` as its request body, or a form with this schema."""
    query = "&".join(
        f"{each.name}={{{_variable(each.name)}}}" for each in route.parameters if _is_needed(each, "query")
    )
    url = address.rstrip("/") + route.path + (f"?{query}" if query else "")
    headers = {each.name: f"{{{_variable(each.name)}}}" for each in route.parameters if _is_needed(each, "header")}
    if route.auth in _CREDENTIALS:
        headers["Authorization"] = f"Bearer {{{_CREDENTIALS[route.auth]}}}"
    if route.idempotent:
        headers["Idempotency-Key"] = "{IDEMPOTENCY_KEY}"
    if form is not None and body is None:
        texts, file = _form_example(form)
        return [
            {"lang": "bash", "label": "curl", "source": _curl_upload(url, headers, texts, file)},
            {"lang": "python", "label": "Python", "source": _python_upload(url, headers, texts, file)},
            {"lang": "javascript", "label": "JavaScript", "source": _javascript_upload(url, headers, texts, file)},
        ]
    is_stream = any(EVENT_STREAM in media.content_types for media in route.media)
    request = (route.method, url, headers, body, is_stream)
    return [
        {"lang": "bash", "label": "curl", "source": _curl(*request)},
        {"lang": "python", "label": "Python", "source": _python(*request)},
        {"lang": "javascript", "label": "JavaScript", "source": _javascript(*request)},
    ]


def _is_needed(parameter: Parameter, location: str) -> bool:
    return parameter.required and parameter.location == location


def _curl(method: str, url: str, headers: dict[str, str], body: object | None, is_stream: bool) -> str:
    parts = [f"curl -sS{'N' if is_stream else ''} -X {method} {_shell(url)}"]
    if headers.get("Authorization") == _OPERATORS:
        # Command lines can be read by every user of the machine.
        headers = {name: value for name, value in headers.items() if name != "Authorization"}
        parts = [f"printf 'Authorization: Bearer %s' \"$OPERATOR_TOKEN\" | {parts[0]}", "-H @-"]
    if body is not None:
        headers = {**headers, "Content-Type": "application/json"}
    parts += [f"-H {_shell(f'{name}: {value}')}" for name, value in headers.items()]
    if body is not None:
        parts.append("-d '" + json.dumps(body, ensure_ascii=False, indent=2).replace("'", "'\\''") + "'")
    return " \\\n  ".join(parts)


def _form_example(schema: Mapping[str, Any]) -> tuple[dict[str, str], str]:
    """Return the texts of a form's required fields, by their names, and the name of the file."""
    fields = {name: schema["properties"][name] for name in schema["required"]}
    files = [name for name, each in fields.items() if each.get("format") == "binary"]
    return {name: each["examples"][0] for name, each in fields.items() if name not in files}, files[0]


def _curl_upload(url: str, headers: dict[str, str], texts: dict[str, str], file: str) -> str:
    sent = [f"-H {_shell(f'{name}: {value}')}" for name, value in headers.items()]
    sent += [f'-F "{name}={value}"' for name, value in (*texts.items(), (file, "@picture.png"))]
    return " \\\n  ".join((f"curl -sS -X POST {_shell(url)}", *sent))


def _python_upload(url: str, headers: dict[str, str], texts: dict[str, str], file: str) -> str:
    data = f"    data={_literal(texts, 4)},\n" if texts else ""
    return (
        "import os\n\nimport requests\n\nresponse = requests.post(\n"
        f"    {_literal(url, 4)},\n    headers={_literal(headers, 4)},\n{data}"
        f'    files={{"{file}": open("picture.png", "rb")}},\n)\nprint(response.status_code, response.text)'
    )


def _shell(text: str) -> str:
    return '"' + _PLACEHOLDER.sub(lambda found: f"${_variable(found[1])}", text) + '"'


def _python(method: str, url: str, headers: dict[str, str], body: object | None, is_stream: bool) -> str:
    arguments = [_literal(url, 4)]
    if headers:
        arguments.append(f"headers={_literal(headers, 4)}")
    if body is not None:
        arguments.append(f"json={_literal(body, 4)}")
    if is_stream:
        arguments.append("stream=True")
    shown = "print(response.status_code, response.text)"
    if is_stream:
        shown = "for line in response.iter_lines():\n    print(line)"
    call = "".join(f"    {each},\n" for each in arguments)
    imports = "import os\n\nimport requests" if "os.environ" in call else "import requests"
    return f"{imports}\n\nresponse = requests.{method.lower()}(\n{call})\n{shown}"


def _javascript(method: str, url: str, headers: dict[str, str], body: object | None, is_stream: bool) -> str:
    """Return a module for Node.js 18 or newer."""
    options = f'  method: "{method}",\n' if method != "GET" else ""
    if body is not None:
        headers = {**headers, "Content-Type": "application/json"}
    if headers:
        options += f"  headers: {_javascript_literal(headers, 2)},\n"
    if body is not None:
        options += f"  body: JSON.stringify({_javascript_literal(body, 2)}),\n"
    call = f"fetch({_javascript_literal(url, 0)}" + (f", {{\n{options}}});" if options else ");")
    shown = "console.log(response.status, await response.text());"
    if is_stream:
        shown = (
            "for await (const part of response.body.pipeThrough(new TextDecoderStream())) {\n"
            "  process.stdout.write(part);\n}"
        )
    return f"const response = await {call}\n{shown}"


def _javascript_upload(url: str, headers: dict[str, str], texts: dict[str, str], file: str) -> str:
    fields = "".join(f"form.append({json.dumps(name)}, {json.dumps(value)});\n" for name, value in texts.items())
    return (
        'import { openAsBlob } from "node:fs";\n\nconst form = new FormData();\n'
        f'{fields}form.append("{file}", await openAsBlob("picture.png"), "picture.png");\n'
        f"const response = await fetch({_javascript_literal(url, 0)}, {{\n"
        f'  method: "POST",\n  headers: {_javascript_literal(headers, 2)},\n  body: form,\n}});\n'
        "console.log(response.status, await response.text());"
    )


def _javascript_literal(value: object, indent: int) -> str:
    """Write a value of JSON in JavaScript, one member of an object per line."""
    if isinstance(value, Mapping):
        pad = " " * indent
        members = [
            f"{pad}  {json.dumps(name)}: {_javascript_literal(each, indent + 2)},\n" for name, each in value.items()
        ]
        return f"{{\n{''.join(members)}{pad}}}" if members else "{}"
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if found := _PLACEHOLDER.fullmatch(value):
        return f"process.env.{found[1]}"
    text = json.dumps(value, ensure_ascii=False)
    filled = _PLACEHOLDER.sub(lambda found: f"${{process.env.{_variable(found[1])}}}", text)
    return text if filled == text else f"`{filled[1:-1]}`"


def _literal(value: object, indent: int) -> str:
    """Write a value of JSON in Python, one member of an object per line."""
    if isinstance(value, Mapping):
        pad = " " * indent
        members = [f"{pad}    {json.dumps(name)}: {_literal(each, indent + 4)},\n" for name, each in value.items()]
        return f"{{\n{''.join(members)}{pad}}}" if members else "{}"
    if not isinstance(value, str):
        return repr(value)
    if found := _PLACEHOLDER.fullmatch(value):
        return f'os.environ["{found[1]}"]'
    text = json.dumps(value, ensure_ascii=False)
    filled = _PLACEHOLDER.sub(lambda found: f"{{os.environ['{_variable(found[1])}']}}", text)
    return text if filled == text else f"f{filled}"


def _variable(name: str) -> str:
    return re.sub(r"\W", "_", name).upper()
