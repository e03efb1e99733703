"""A journey by the client that openapi-python-client generates: ``openapi_python_client.py URL``."""

import json
import sys
import time
from http import HTTPStatus

from python_client import AuthenticatedClient, Client
from python_client.api.api_keys import create_api_key
from python_client.api.credit import read_account, recharge
from python_client.api.models import list_models, quote
from python_client.api.sign_in import request_code, verify_code
from python_client.api.tasks import create_task, list_tasks, read_task
from python_client.models import (
    AccountBody,
    ApiKeyRequest,
    ApiKeySecret,
    CodeRequest,
    CodeSent,
    CreateTaskRequest,
    CreateTaskRequestInput,
    ErrorResponse,
    ModelList,
    QuoteBody,
    QuoteRequest,
    QuoteRequestInput,
    RechargedBody,
    RechargeRequest,
    TaskBody,
    TaskList,
    Verified,
    VerifyRequest,
)

URL = sys.argv[1]
EMAIL = "python-client@example.com"
INPUT = {"prompt": "a lighthouse at dusk", "width": 256, "height": 256}

visitor = Client(base_url=URL)
sent = request_code.sync(client=visitor, body=CodeRequest(email=EMAIL))
assert isinstance(sent, CodeSent)
assert sent.debug_otp is not None
proof = VerifyRequest(email=EMAIL, otp_id=sent.otp_id, otp=sent.debug_otp)
verified = verify_code.sync(client=visitor, body=proof)
assert isinstance(verified, Verified)
session = AuthenticatedClient(base_url=URL, token=verified.session.token)
created = create_api_key.sync(client=session, body=ApiKeyRequest())
assert isinstance(created, ApiKeySecret)
assert isinstance(recharge.sync(client=session, body=RechargeRequest(amount="1.00")), RechargedBody)

caller = AuthenticatedClient(base_url=URL, token=created.api_key)
models = list_models.sync(client=visitor)
assert isinstance(models, ModelList)
[model] = [each.id for each in models.data if each.id == "studio/image-1"]
priced = quote.sync(client=caller, body=QuoteRequest(model=model, input_=QuoteRequestInput.from_dict(INPUT)))
assert isinstance(priced, QuoteBody)
wanted = CreateTaskRequest(model=model, input_=CreateTaskRequestInput.from_dict(INPUT), quote_id=priced.quote_id)
accepted = create_task.sync(client=caller, body=wanted, idempotency_key="one")
assert isinstance(accepted, TaskBody)
while True:
    task = read_task.sync(accepted.request_id, client=caller)
    assert isinstance(task, TaskBody)
    if task.status in {"succeeded", "failed", "canceled"}:
        break
    time.sleep(0.1)
page = list_tasks.sync(client=caller, limit=10)
assert isinstance(page, TaskList)
totals = read_account.sync(client=session)
assert isinstance(totals, AccountBody)
missing = read_task.sync_detailed("task_none", client=caller)
assert missing.status_code == HTTPStatus.NOT_FOUND
assert isinstance(missing.parsed, ErrorResponse)
json.dump(
    {
        "status": task.status,
        "outputs": len(task.output),
        "cost": task.usage.cost_credits,
        "quoted": priced.estimate.credits_,
        "listed": len(page.data),
        "available": totals.available_balance,
        "code": missing.parsed.error.code,
    },
    sys.stdout,
)
