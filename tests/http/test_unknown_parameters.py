"""A query parameter that an endpoint does not have is refused by name: a list would otherwise look filtered."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from tests.clients import refused

from holdfast.http.app import ROUTES
from holdfast.http.kit.calls import Auth
from holdfast.http.kit.openapi import error_codes
from holdfast.http.kit.problems import has_problems
from holdfast.http.kit.routes import Route

if TYPE_CHECKING:
    from tests.http.api import Api

SELECTING = [
    route
    for route in ROUTES
    if route.method == "GET"
    and any(each.place == "query" for each in route.parameters)
    # Errors have another form there, which is tested with it.
    and not has_problems(route.path)
]


def headers_for(api: Api, route: Route) -> dict[str, str]:
    tokens = {
        Auth.SESSION: api.session,
        Auth.SESSION_OR_KEY: api.session,
        Auth.API_KEY: api.key,
        Auth.KEY_OR_LINK: api.key,
    }
    token = tokens.get(route.auth) or api.deps.settings.operator_token
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("route", SELECTING, ids=lambda route: route.name)
async def test_the_unknown_parameter_and_the_known_ones_are_named(api: Api, route: Route) -> None:
    path = re.sub(r"\{\w+\}", "x", route.path)
    response = await api.call("GET", f"{path}?statuz=done", headers=headers_for(api, route))
    error = refused(response, 400, "invalid_parameter")
    assert error["param"] == "statuz"
    assert error["message"] == (
        "The parameter 'statuz' does not exist here. The known parameters are "
        + ", ".join(each.name for each in route.parameters if each.place == "query")
        + "."
    )
    assert "invalid_parameter" in error_codes(route)


async def test_an_unknown_name_is_cut_and_the_credential_comes_first(api: Api) -> None:
    path = "/v2/task/list?" + "x" * 5000 + "=1"
    error = refused(await api.as_key("GET", path), 400, "invalid_parameter")
    assert error["param"] == "x" * 80
    assert len(error["message"]) < 300
    refused(await api.call("GET", path), 401, "missing_credentials")


async def test_an_address_without_parameters_of_its_own_may_have_any(api: Api) -> None:
    assert (await api.call("GET", "/v1/models?utm_source=mail")).status_code == 200
