"""What an API key may read of its account: nothing, unless its creator asked for it."""

from __future__ import annotations

import httpx2
import pytest
from tests.clients import Customer, loopback_client, ok

from .service_process import Service

OF_ACCOUNT = (
    "/v2/control/account",
    "/v2/control/ledger",
    "/v2/control/ledger?format=csv",
    "/v2/control/payments",
    "/v2/control/payments/{order}",
)
OF_USAGE = (
    "/v2/usage/logs",
    "/v2/usage/logs?format=csv",
    "/v2/usage/totals?group_by=day,model&to=2999-01-01",
    "/v2/usage/totals?format=csv&to=2999-01-01",
)


@pytest.mark.parametrize(
    ("scopes", "readable"),
    [
        (None, ()),
        (["tasks:read", "tasks:write"], ()),
        (["account:read"], OF_ACCOUNT),
        (["usage:read"], OF_USAGE),
        (["usage:read", "account:read"], (*OF_ACCOUNT, *OF_USAGE)),
    ],
)
async def test_a_key_reads_what_was_asked_for(
    shared_service: Service, scopes: list[str] | None, readable: tuple[str, ...]
) -> None:
    async with loopback_client(base_url=shared_service.url, timeout=60) as http:
        customer = Customer(http)
        await customer.sign_in()
        await customer.recharge("3.00")
        session = {"Authorization": f"Bearer {customer.session}"}
        order = ok(await http.post("/v2/control/payments/sandbox", json={"amount": "2.00"}, headers=session))
        body = {} if scopes is None else {"scopes": scopes}
        created = ok(await http.post("/v2/control/api-keys", json=body, headers=session))
        assert created["scopes"] == (scopes or ["tasks:read", "tasks:write"])
        key = {"Authorization": f"Bearer {created['api_key']}"}

        async def read(path: str, credential: dict[str, str]) -> httpx2.Response:
            return await http.get(path.format(order=order["order_id"]), headers=credential)

        for path in (*OF_ACCOUNT, *OF_USAGE):
            answer = await read(path, key)
            if path in readable:
                assert (answer.status_code, answer.content) == (200, (await read(path, session)).content)
            else:
                assert answer.status_code == 403
                error = answer.json()["error"]
                assert error["code"] == "insufficient_scope"
                of_orders = "/payments" in path
                scope = "orders:read" if of_orders else "account:read" if path in OF_ACCOUNT else "usage:read"
                assert error["message"] == f"The API key does not have the scope {scope}."
        # The key changes nothing, and reads no secret.
        for path in ("/v2/control/api-keys", "/v2/control/webhook-secret"):
            assert (await read(path, key)).json()["error"]["code"] == "insufficient_scope"
        assert (await read("/v2/control/session", key)).json()["error"]["code"] == "wrong_credential_type"
        refused = await http.post("/v2/control/sandbox/recharge", json={"amount": "1.00"}, headers=key)
        assert refused.json()["error"]["code"] == "wrong_credential_type"
        ok(await http.delete(f"/v2/control/api-keys/{created['api_key_id']}", headers=session))
        assert (await read(OF_ACCOUNT[0], key)).status_code == 401
