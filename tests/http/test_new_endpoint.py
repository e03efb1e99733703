"""The endpoint that CONTRIBUTING.md adds as an example: its one file is enough to serve and describe it."""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from tests.clients import refused
from tests.http.stage import in_process

from holdfast.http import endpoints
from holdfast.http.app import HoldfastApp
from holdfast.http.kit.openapi import describe
from holdfast.http.kit.routes import Route

if TYPE_CHECKING:
    from tests.http.api import Api

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"
PATH = "/v2/control/balance"


@pytest.fixture
def routes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Route, ...]:
    """All routes, with the example's file among the endpoint modules."""
    section = CONTRIBUTING.read_text(encoding="utf-8").partition("## Adding an endpoint")[2]
    example = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert example is not None
    (tmp_path / "balance.py").write_text(example[1], encoding="utf-8")
    monkeypatch.setattr(endpoints, "__path__", [*endpoints.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, f"{endpoints.__name__}.balance", raising=False)
    return endpoints.all_routes.__wrapped__()


async def test_the_example_is_served_over_http(api: Api, routes: tuple[Route, ...]) -> None:
    api.app = HoldfastApp(api.deps, routes)
    api.http = in_process(api.app)
    async with api.serving() as base:
        request = urllib.request.Request(base + PATH, headers={"Authorization": f"Bearer {api.session}"})
        with await trio.to_thread.run_sync(urllib.request.urlopen, request) as response:
            assert json.load(response) == {"balance": "10.00"}
    refused(await api.call("GET", PATH), 401, "missing_credentials")


def test_the_example_is_in_the_openapi_document(routes: tuple[Route, ...]) -> None:
    operation: dict[str, Any] = describe(routes, "https://holdfast.example")["paths"][PATH]["get"]
    assert operation["summary"] == "Retrieve the account's balance"
    assert [sample["label"] for sample in operation["x-codeSamples"]] == ["curl", "Python", "JavaScript"]
    assert operation["responses"]["200"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/Balance"
    }
