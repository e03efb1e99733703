"""One trace leads from a caller's request to the webhook, over the provider, and carries no secret."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tests.clients import IMAGE, ok, until

from .conftest import NewCustomer, NewService
from .operator_client import Operator
from .receiver import receiver
from .trace_collector import trace_collector

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PLANTED = "sk_live_4eC39HqLyjWDarjtT1zdp7dc"


@pytest.mark.slow
async def test_a_tasks_whole_life_is_one_trace(new_service: NewService, new_customer: NewCustomer) -> None:
    with trace_collector() as collector, receiver() as endpoint, trio.fail_after(120):
        service = new_service()
        service.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
        service.environment["OTEL_BSP_SCHEDULE_DELAY"] = "100"
        service.environment["OTEL_EXPORTER_OTLP_COMPRESSION"] = "none"
        await trio.to_thread.run_sync(service.start)
        ada = await new_customer(service, credit="10.00")
        order: dict[str, Any] = {
            "model": "studio/image-1", "input": IMAGE, "webhook_url": f"{endpoint.url}/ada?key={PLANTED}",
        }  # fmt: skip
        sent = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01", "tracestate": f"vendor={PLANTED}"}
        created = await ada.as_key("POST", "/v2/task/create", order, headers=sent)
        request_id = ok(created)["request_id"]
        assert created.headers["traceresponse"].split("-")[1] == TRACE_ID
        posts = await endpoint.wait(f"/ada?key={PLANTED}", 2)
        assert {post.headers["traceparent"].split("-")[1] for post in posts} == {TRACE_ID}
        assert all("tracestate" not in post.headers for post in posts)

        def names() -> set[str]:
            return {name.split(" job")[0] for name in collector.of_trace(TRACE_ID)}

        wanted = {
            "POST /v2/task/create", "turn CreateTask", "commit", "turn CallProvider", "submit studio",
            "POST /v2/callback", "turn ReceiveProviderUpdate", "store outputs", "turn SettleTask", "webhook",
        }  # fmt: skip

        async def all_exported() -> bool:
            return wanted <= names()

        await until(all_exported)
        trace = collector.of_trace(TRACE_ID)
        root = trace["POST /v2/task/create"][0]
        assert root.parent_span_id.hex() == SPAN_ID
        known = {span.span_id for spans in trace.values() for span in spans} | {bytes.fromhex(SPAN_ID)}
        assert all(span.parent_span_id in known for spans in trace.values() for span in spans)

        operator = Operator(service)
        async with operator.http:
            for sought in (created.headers["X-Request-Id"], TRACE_ID):
                found = ok(await operator.http.get("/ops/api/find", params={"q": sought}))["data"]
                assert [(each["account_id"], each["reference"]) for each in found] == [(ada.account_id, request_id)]
            refused = await ada.as_key("POST", "/v2/task/create", {**order, "model": "studio/none"})
            query = {"about": refused.headers["X-Request-Id"]}
            [each] = ok(await operator.http.get("/ops/api/refused-requests", params=query))["data"]
            assert (each["code"], each["caller"]) == ("model_not_found", ada.account_id)

        ignored = {"traceparent": f"00-{PLANTED}", "X-Note": PLANTED, "Cookie": PLANTED}
        other = await ada.as_key("GET", f"/v2/task/{request_id}?cursor={PLANTED}", headers=ignored)
        assert "traceresponse" not in other.headers
        own_trace = other.headers["X-Request-Id"].removeprefix("req_")

        async def own_exported() -> bool:
            return bool(collector.of_trace(own_trace))

        await until(own_exported)
        assert await trio.to_thread.run_sync(service.stop) == 0
        text = service.log_path.read_text("utf-8")
        for secret in (PLANTED, ada.key, ada.session, ada.email):
            assert secret not in text
            assert all(secret.encode() not in body for body in collector.bodies)
        life = [line for line in service.log_lines() if line.get("task_id") == request_id]
        assert [line["event"] for line in life] == ["task created", "task submitted", "task succeeded"]
        for line in life:
            assert list(line)[:6] == ["time", "level", "event", "task_id", "account_id", "provider"]
            assert (line["trace_id"], line["account_id"]) == (TRACE_ID, ada.account_id)
        assert service.faults() == []
