"""Quart extensions: hooks, signals, blueprints and the request context work as Quart's documentation says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from quart import Blueprint, Quart, Response, abort, current_app, g, jsonify, request, request_started

from holdfast.actors.runtime.faults import Overloaded
from holdfast.http.app import create_app

if TYPE_CHECKING:
    from tests.http.stage import Stage


class Maintenance:
    """An extension as its author would write it, without knowing anything of this application."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[tuple[str | None, dict[str, object] | None]] = []
        self.ended: list[BaseException | None] = []

    def init_app(self, app: Quart) -> None:
        app.extensions["maintenance"] = self
        app.before_request(self.before)
        app.after_request(self.after)
        app.teardown_request(self.teardown)
        blueprint = Blueprint("maintenance", __name__, url_prefix="/maintenance")
        blueprint.add_url_rule("/<word>", "show", self.show)
        app.register_blueprint(blueprint)

    async def before(self) -> Response | None:
        g.caller = request.headers.get("X-Caller", "unknown")
        self.seen.append((request.endpoint, request.view_args))
        return jsonify(closed=True) if self.on else None

    async def after(self, response: Response) -> Response:
        response.headers["X-Caller"] = g.caller
        return response

    async def teardown(self, error: BaseException | None) -> None:
        self.ended.append(error)

    async def show(self, word: str) -> Response:
        if word == "teapot":
            abort(418)
        if word == "busy":
            raise Overloaded("full", retry_after_s=2.0)
        return jsonify(word=word, extensions=sorted(current_app.extensions))


def install(stage: Stage) -> Maintenance:
    extension = Maintenance()
    stage.app = create_app(stage.deps, extensions=[extension.init_app])
    return extension


async def test_hooks_surround_a_view_with_the_request_context(stage: Stage) -> None:
    extension = install(stage)
    response = await stage.call("GET", "/v1/models/studio/image-1", headers={"X-Caller": "ada"})
    assert (response.status_code, response.headers["X-Caller"]) == (200, "ada")
    assert extension.seen == [("GET /v1/models/{model_id}", {"model_id": "studio/image-1"})]
    assert extension.ended == [None]


async def test_a_before_hook_may_answer_instead_of_the_view(stage: Stage) -> None:
    install(stage).on = True
    response = await stage.call("POST", "/v2/task/create")
    assert await response.get_json() == {"closed": True}
    assert response.headers["X-Request-Id"].startswith("req_")


async def test_hooks_surround_refusals_and_unknown_paths(stage: Stage) -> None:
    extension = install(stage)
    response = await stage.call("GET", "/nowhere", headers={"X-Caller": "ada"})
    await stage.refused(response, 404, "route_not_found")
    assert response.headers["X-Caller"] == "ada"
    await stage.refused(await stage.as_session("GET", "/v2/task/list"), 401, "wrong_credential_type")
    assert extension.seen == [(None, None), ("GET /v2/task/list", {})]


async def test_a_blueprint_is_served_under_the_one_error_table(stage: Stage) -> None:
    install(stage)
    shown = await stage.call("GET", "/maintenance/soon")
    assert await shown.get_json() == {"word": "soon", "extensions": ["maintenance"]}
    await stage.refused(await stage.call("GET", "/maintenance/teapot"), 400, "malformed_request")
    busy = await stage.call("GET", "/maintenance/busy")
    await stage.refused(busy, 503, "overloaded")
    assert busy.headers["Retry-After"] == "2"


async def test_signals_are_sent(stage: Stage) -> None:
    install(stage)
    started: list[str] = []

    async def note(_app: Quart) -> None:
        started.append(request.path)

    with request_started.connected_to(note, stage.app):
        await stage.call("GET", "/healthz")
    assert started == ["/healthz"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2/models"), ("HEAD", "/v2/models"), ("GET", "/v1/models/studio%2Fimage-1"),
        ("GET", "/%6detrics"), ("OPTIONS", "/v2/task/list"), ("OPTIONS", "/nowhere"), ("PUT", "/v2/task/create"),
        ("GET", "/v2/task/create"), ("POST", "/v2/quote"), ("GET", "/v2/task/list"), ("GET", "/metrics"),
        ("GET", "/"), ("GET", "/v2/task/a/b/c"),
    ],
)  # fmt: skip
async def test_both_dispatchers_answer_alike(stage: Stage, method: str, path: str) -> None:
    answers = []
    for app in (stage.app, create_app(stage.deps, extensions=[lambda app: None])):
        stage.app = app
        response = await stage.call(method, path)
        headers = {name: value for name, value in response.headers.items() if name != "x-request-id"}
        body = re.sub(r"req_[0-9a-f]{32}", "", await response.get_data(as_text=True))
        answers.append((response.status_code, headers, body))
    assert answers[0] == answers[1]
