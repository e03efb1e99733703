"""A call of the API as programs make it: with curl, in Python and in JavaScript, ready to be copied."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pprint import pformat
from typing import NamedTuple

from holdfast.http.schemas.models import ModelDetails
from holdfast_console.formats import printable

KEY_PLACEHOLDER = "YOUR_API_KEY"


class CodeSample(NamedTuple):
    """The text of a program, and the language that it is in."""

    language: str
    text: str


def create_samples(base_url: str, body: Mapping[str, object], api_key: str = KEY_PLACEHOLDER) -> list[CodeSample]:
    """Return the call that creates a task of ``body``, with the key in place."""
    url = f"{base_url}/v2/task/create"
    text = printable(json.dumps(body, indent=2, ensure_ascii=False))
    return [
        CodeSample(
            "curl",
            f"curl -sS {shlex.quote(url)} \\\n  -H 'Authorization: Bearer {api_key}' \\\n"
            f"  -H 'Content-Type: application/json' \\\n  -d {shlex.quote(text)}",
        ),
        CodeSample(
            "Python",
            f'import requests\n\ntask = requests.post(\n    "{url}",\n'
            f'    headers={{"Authorization": "Bearer {api_key}"}},\n'
            f"    json={_indented(pformat(body, width=88, sort_dicts=False))},\n).json()\n"
            "# Read it with ?wait=60 until it has ended; its links are in output.\n"
            'print(task["request_id"], task["urls"]["get"])',
        ),
        CodeSample(
            "JavaScript",
            f'const response = await fetch("{url}", {{\n  method: "POST",\n  headers: {{\n'
            f'    Authorization: "Bearer {api_key}",\n    "Content-Type": "application/json",\n  }},\n'
            f"  body: JSON.stringify({_indented(text, 2)}),\n}});\n"
            "const task = await response.json();\nconsole.log(task.request_id, task.urls.get);",
        ),
    ]


def example_body(models: list[ModelDetails]) -> dict[str, object]:
    """Return the body of a create of the first model that runs and has an example."""
    for model in models:
        if model.example_input is not None and not model.priced_only and model.status == "active":
            return {"model": model.id, "input": model.example_input}
    return {"model": "owner/name", "input": {}}


def _indented(text: str, by: int = 4) -> str:
    """Indent all lines but the first."""
    return text.replace("\n", "\n" + " " * by)
