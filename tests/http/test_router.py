"""What is served at a path: fixed segments before parameters, whole segments, a model's id with slashes."""

from __future__ import annotations

import re

import pytest
from quart import Response

from holdfast.http.app import OPERATORS_ROUTES, SERVED
from holdfast.http.kit.calls import Method
from holdfast.http.kit.extensions import ServedPage
from holdfast.http.kit.router import Router


async def _serve(*_: object) -> Response:
    raise AssertionError


def _page(method: Method, path: str) -> ServedPage:
    return ServedPage(method=method, path=path, serve=_serve)


ROUTER = Router(
    [
        _page("GET", "/"),
        _page("GET", "/tasks"),
        _page("POST", "/tasks"),
        _page("POST", "/tasks/create"),
        _page("DELETE", "/tasks/{id}"),
        _page("GET", "/tasks/{id}"),
        _page("POST", "/tasks/{id}/events/{event}/resend"),
        _page("POST", "/tasks/groups/{group}/end"),
        _page("GET", "/models/{model_id}"),
        _page("POST", "/ops/models/{model_id}/pause"),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "name", "values"),
    [
        ("GET", "/", "GET /", {}),
        ("HEAD", "/tasks", "GET /tasks", {}),
        ("OPTIONS", "/tasks", "GET /tasks", {}),
        ("POST", "/tasks/create", "POST /tasks/create", {}),
        ("GET", "/tasks/created", "GET /tasks/{id}", {"id": "created"}),
        ("DELETE", "/tasks/{id}", "DELETE /tasks/{id}", {"id": "{id}"}),
        ("OPTIONS", "/tasks/ü b\n", "DELETE /tasks/{id}", {"id": "ü b\n"}),
        ("POST", "/tasks/a/events/b/resend", "POST /tasks/{id}/events/{event}/resend", {"id": "a", "event": "b"}),
        ("POST", "/tasks/groups/a/end", "POST /tasks/groups/{group}/end", {"group": "a"}),
        ("GET", "/models/a/b", "GET /models/{model_id}", {"model_id": "a/b"}),
        ("GET", "/models/a/pause", "GET /models/{model_id}", {"model_id": "a/pause"}),
        ("POST", "/ops/models/pause/pause", "POST /ops/models/{model_id}/pause", {"model_id": "pause"}),
        ("POST", "/ops/models/a/b/pause", "POST /ops/models/{model_id}/pause", {"model_id": "a/b"}),
    ],
)
def test_a_path_has_its_route_and_values(method: str, path: str, name: str, values: dict[str, str]) -> None:
    served, found = ROUTER.find(path)
    assert (served[method][1], found) == (name, values)


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/tasks", {"GET", "HEAD", "OPTIONS", "POST"}),
        ("/tasks/create", {"OPTIONS", "POST"}),
        ("/tasks/a", {"DELETE", "GET", "HEAD", "OPTIONS"}),
    ],
)
def test_a_path_has_the_methods_of_its_routes_alone(path: str, methods: set[str]) -> None:
    assert {*ROUTER.find(path)[0]} == methods


@pytest.mark.parametrize(
    "path",
    [
        *(
            "",
            "*",
            "tasks",
            "//tasks",
            "/tasks/",
            "/tasks//",
            "/Tasks",
            "/tasks/a/",
            "/tasks/a/events",
            "/tasks/groups/a",
        ),
        *("/tasks//events/b/resend", "/tasks/a/events/b/resend/c", "/tasks/groups/events/a/resend"),
        *("/models/", "/models", "/ops/models/pause", "/ops/models//pause", "/ops/models/a/pauses"),
    ],
)
def test_nothing_else_is_at_a_path(path: str) -> None:
    assert ROUTER.find(path)[0] == {}


def test_two_routes_of_one_method_and_path_are_a_bug() -> None:
    with pytest.raises(AssertionError, match="GET /a is declared once"):
        Router([_page("GET", "/a"), _page("GET", "/a")])


def test_every_route_of_the_service_is_found_by_its_path() -> None:
    for routes in (SERVED, OPERATORS_ROUTES):
        router = Router(routes)
        for route in routes:
            served, values = router.find(re.sub(r"\{(\w+)\}", r"a-\1", route.path))
            assert served[route.method] == (route, route.name)
            assert values == {name: f"a-{name}" for name in re.findall(r"\{(\w+)\}", route.path)}
