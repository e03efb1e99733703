"""Record the examples of responses in the OpenAPI document: ``python -m tests.journeys.record_responses``.

One valid request to every operation of a running service, as in :mod:`tests.journeys.test_openapi_document`. The
responses are stored by the type of their body, with secrets made unusable and lists cut to one element.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio
from tests.clients import IMAGE, Customer, loopback_client, ok

from holdfast.http.app import EXTENSIONS, ROUTES
from holdfast.http.kit import openapi
from holdfast.ledger.tasks.events import EVENT_KINDS

from .card_provider import CardProviderProcess, run_card_provider
from .receiver import Receiver, receiver
from .service_process import OPERATOR_TOKEN, Service, new_folder, running_service
from .test_openapi_document import OPERATOR, WHY, Good, arrive

PLACES = {"holdfast": openapi.RECORDED} | {
    each.routes[0].handler.__module__.partition(".")[0]: each.examples
    for each in EXTENSIONS
    if each.examples is not None
}
"""The files of the examples, by the package that has the types."""
OF_EXTENSIONS = {
    route.reply.__name__: package
    for route in ROUTES
    if route.reply is not None and (package := route.reply.__module__.partition(".")[0]) != "holdfast"
}
SCHEMAS = {"input_schema", "openapi_schema"}
SECRET = re.compile(r"\b(hst|hk|whsec)_[\w+/=-]{12,}")


def shortened(value: Any) -> Any:
    """Return a value of JSON with one element of each list, but for those in a schema, and no secret."""
    if isinstance(value, dict):
        return {name: each if name in SCHEMAS else shortened(each) for name, each in value.items()}
    if isinstance(value, list):
        return [shortened(each) for each in value[:1]]
    return SECRET.sub(lambda found: f"{found[1]}_example", value) if isinstance(value, str) else value


async def made(customer: Customer, hook: Receiver) -> dict[str, Any]:
    """Run a task with a webhook, and return its events by kind, a refusal, and the cancel of a video."""
    await customer.sign_in()
    await customer.recharge("5.00")
    body = {"model": "studio/image-1", "input": IMAGE}
    wanted = {"webhook_url": f"{hook.url}/hook", "webhook_events": list(EVENT_KINDS)}
    ok(await customer.as_key("POST", "/v2/task/create", {**body, **wanted}))
    kinds = ("task.processing", "task.succeeded", "task.assets_ready")
    found: dict[str, Any] = {kind: (await hook.wait("/hook", 1, kind))[0].event for kind in kinds}
    wanted = {"url": f"{hook.url}/account", "events": ["*"]}
    webhook = ok(await customer.as_session("POST", "/v2/control/webhooks", wanted))
    ok(await customer.as_session("POST", f"/v2/control/webhooks/{webhook['webhook_id']}/test"))
    ok(await customer.as_session("PUT", "/v2/control/alerts", {"balance_below": "20.00"}))
    for kind in ("webhook.test", "balance.below"):
        found[kind] = (await hook.wait("/account", 1, kind))[0].event
    ok(await customer.as_session("DELETE", f"/v2/control/webhooks/{webhook['webhook_id']}"))
    refusal = await customer.as_key("POST", "/v2/task/create", {**body, "model": "studio/none"})
    clip = {"model": "studio/clip-1", "prompt": "waves at night", "seconds": "12"}
    video = ok(await customer.as_key("POST", "/v1/videos", clip))
    deleted = ok(await customer.as_key("DELETE", f"/v1/videos/{video['id']}"))
    shown = ok(await customer.http.get("/v1/models/studio/clip-1"))
    wanted = {"webhook_url": f"{hook.url}/canceled", "model": shown["id"], "input": shown["example_input"]}
    task = ok(await customer.as_key("POST", "/v2/task/create", wanted))
    ok(await customer.as_key("POST", f"/v2/task/{task['request_id']}/cancel"))
    found["task.canceled"] = (await hook.wait("/canceled", 1, "task.canceled"))[0].event
    return {**found, "ErrorResponse": refusal.json(), "VideoDeleted": deleted}


async def recorded(service: Service, card_provider: CardProviderProcess, hook: Receiver) -> dict[str, Any]:
    """Return the responses of all operations by type, and the events by kind."""
    visitor = await arrive(service, card_provider)
    async with loopback_client(base_url=service.url, timeout=60) as http:
        customer = Customer(http)
        found = await made(customer, hook)
        operator = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}
        [process] = ok(await http.get("/ops/api/tree", headers=operator))["members"]
        visitor.things |= {"member_id": process["member_id"], "group": "accounts"}
        visitor.things["key"] = customer.account_id
        [failed, *_] = ok(await http.get("/ops/api/webhooks", headers=operator))["data"]
        failing = {"account_id": failed["account_id"], "event_id": failed["event"]["event_id"]}
        # The one that ends the process comes last.
        for route in sorted(ROUTES, key=lambda each: each.handler.__name__ == "drain_process"):
            if route.reply is None:
                continue
            good = visitor.good.get(route.handler.__name__, Good(WHY if route.action else None))
            sent = SimpleNamespace(headers=dict(good.headers), body=json.dumps(good.body or {}).encode())
            known = failing if route.path.startswith("/ops/api/webhooks/") else {}
            headers = visitor.prove(route, sent).headers
            content: Any = {"files": good.files}
            if good.files is None and route.method != "GET":
                content = {"content": sent.body}
                headers = {"Content-Type": "application/json", **headers}
            answer = await http.request(
                route.method,
                re.sub(
                    r"\{(\w+)\}",
                    # Called at once.
                    lambda part: known.get(part[1]) or visitor.thing(route.handler.__name__, part[1]),  # noqa: B023
                    route.path,
                ),
                params=good.query,
                headers=headers,
                **content,
            )
            if answer.status_code in {200, 201}:
                name, body = route.reply.__name__, answer.json()
                # One with entries, if any operation with this type has some.
                if name not in found or found[name].get("data") == []:
                    found[name] = body
            else:
                sys.stdout.write(
                    f"not recorded: {route.handler.__name__} {answer.status_code} {answer.text[:200]}\n"
                )
    return found


def main() -> None:
    """Record, and write the files."""
    with (
        run_card_provider() as card_provider,
        receiver() as hook,
        running_service(
            new_folder(), OPERATOR_TOKEN=OPERATOR_TOKEN, OPERATORS=OPERATOR, **card_provider.settings()
        ) as service,
    ):
        card_provider.serve(service)
        found = trio.run(recorded, service, card_provider, hook)
    for package, place in PLACES.items():
        # By name; the fields of each are in the order in which they were sent, which is that of their declaration.
        own = {name: found[name] for name in sorted(found) if OF_EXTENSIONS.get(name, "holdfast") == package}
        text = json.dumps(shortened(own), indent=1, ensure_ascii=False)
        Path(str(place)).write_text(text.replace(service.url, openapi.RECORDED_AT) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
