"""Names that an endpoint does not know: refused in a query, and in a body refused if a known one is meant."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.clients import refused

from holdfast.http.app import EXTENSIONS, ROUTES
from holdfast.http.kit.calls import SIGNED, Auth
from holdfast.http.kit.openapi import describe, error_codes, example_body
from holdfast.http.kit.routes import Route
from holdfast_compat.replicate.problems import PROBLEMS

if TYPE_CHECKING:
    from tests.http.api import Api

SELECTING = [
    route
    for route in ROUTES
    if route.method == "GET"
    and any(each.location == "query" for each in route.parameters)
    # Errors have another form there, which is tested with it.
    and not route.path.startswith(PROBLEMS.below)
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


async def test_the_unknown_parameter_and_the_known_ones_are_named(api: Api) -> None:
    for route in SELECTING:
        path = re.sub(r"\{\w+\}", "x", route.path)
        response = await api.call("GET", f"{path}?statuz=done", headers=headers_for(api, route))
        error = refused(response, 400, "invalid_parameter")
        known = ", ".join(each.shown_name for each in route.parameters if each.location == "query")
        rule = f"The known parameters are {known}."
        message = f"The parameter 'statuz' does not exist here. {rule}"
        assert (error["param"], error["message"]) == ("statuz", message), route.name
        assert "invalid_parameter" in error_codes(route), route.name


async def test_an_unknown_name_is_cut_and_the_credential_comes_first(api: Api) -> None:
    path = "/v2/task/list?" + "x" * 5000 + "=1"
    error = refused(await api.as_key("GET", path), 400, "invalid_parameter")
    assert error["param"] == "x" * 80
    assert len(error["message"]) < 300
    refused(await api.call("GET", path), 401, "missing_credentials")


async def test_an_address_without_parameters_of_its_own_may_have_any(api: Api) -> None:
    assert (await api.call("GET", "/v1/models?utm_source=mail")).status_code == 200


SCHEMAS = describe(ROUTES, "https://holdfast.example", EXTENSIONS)["components"]["schemas"]
CHANGING = [route for route in ROUTES if route.method != "GET" and not route.path.startswith(PROBLEMS.below)]


async def test_a_change_refuses_an_unknown_parameter_unless_it_is_signed(api: Api) -> None:
    for route in CHANGING:
        path = re.sub(r"\{\w+\}", "x", route.path)
        headers = headers_for(api, route) if route.auth is not Auth.NONE else {}
        body = example_body(route, SCHEMAS)
        response = await api.call(route.method, f"{path}?wiat=60", headers=headers, json=body)
        if route.auth in SIGNED:
            assert response.json()["error"]["param"] != "wiat", route.name
            assert "invalid_parameter" not in error_codes(route) or route.body is not None, route.name
            continue
        error = refused(response, 400, "invalid_parameter")
        known = [each.name for each in route.parameters if each.location == "query"]
        rule = f"The known parameters are {', '.join(known)}." if known else "There are none in this address."
        message = f"The parameter 'wiat' does not exist here. {rule}"
        assert (error["param"], error["message"]) == ("wiat", message), route.name
        assert "invalid_parameter" in error_codes(route), route.name
    assert api.accounts.asked == []


MISSPELT = [
    ("webhookUrl", "webhook_url"),
    ("webhook-url", "webhook_url"),
    ("WEBHOOK_URL", "webhook_url"),
    ("webhook_urls", "webhook_url"),
    ("webhok_url", "webhook_url"),
    ("webhook_ulr", "webhook_url"),
    ("webhook_uri", "webhook_url"),
    ("quoteId", "quote_id"),
    ("meta_data", "metadata"),
    ("metdata", "metadata"),
    ("xmetadata", "metadata"),
]


async def test_a_field_that_is_probably_misspelt_is_refused(api: Api) -> None:
    for sent, meant in MISSPELT:
        body = {"model": "studio/image-1", "input": {"prompt": "waves"}, sent: "x"}
        error = refused(await api.as_key("POST", "/v2/task/create", json=body), 400, "invalid_parameter")
        message = f"The parameter {sent} does not exist here; {meant} does."
        assert (error["param"], error["message"]) == (sent, message)
    assert api.accounts.asked == []


async def test_other_unknown_fields_are_ignored_with_a_warning(api: Api) -> None:
    body = {"model": "studio/image-1", "input": {"prompt": "waves"}}
    # A known one is sent beside the first; the others resemble none.
    extra = {"models": 1, "webhook": 1, "priority": 1, "url": 1, "e" * 81: 1, 'q"\r\n': 1, "é": 1, "metadatata": 1}
    response = await api.call("POST", "/v2/quote", json={**body, **extra})
    assert response.status_code == 200
    assert response.headers["Warning"] == (
        '299 - "Unknown fields of the body were ignored: metadatata, models, priority, url, webhook, 3 not shown"'
    )
    response = await api.call("POST", "/v2/quote", json={**body, 'q"': 1})
    assert response.headers["Warning"] == '299 - "Unknown fields of the body were ignored: 1 not shown"'
    many = {f"extra_{number:02}": number for number in range(20)}
    warning = (await api.call("POST", "/v2/quote", json={**body, **many})).headers["Warning"]
    assert warning.endswith(f': {", ".join(sorted(many)[:8])}, 12 not shown"')
    # A refusal has it, too; a body that is understood whole has none.
    refusal = await api.call("POST", "/v2/quote", json={**body, "model": "none", "priority": 1})
    assert (refusal.status_code, "priority" in refusal.headers["Warning"]) == (404, True)
    assert "Warning" not in (await api.call("POST", "/v2/quote", json=body)).headers
