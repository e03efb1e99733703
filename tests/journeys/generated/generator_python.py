"""A journey by the Python client that openapi-generator generates: ``generator_python.py URL``."""

import json
import sys
import time

from openapi_client import (
    ApiClient,
    ApiException,
    ApiKeyRequest,
    APIKeysApi,
    CodeRequest,
    Configuration,
    CreateTaskRequest,
    CreditApi,
    ModelsApi,
    QuoteRequest,
    RechargeRequest,
    SignInApi,
    TasksApi,
    VerifyRequest,
)
from openapi_client.models.error_response import ErrorResponse

URL = sys.argv[1]
EMAIL = "python@example.com"
INPUT = {"prompt": "a lighthouse at dusk", "width": 256, "height": 256}


def client(token: str | None = None) -> ApiClient:
    return ApiClient(Configuration(host=URL, access_token=token))


sign_in = SignInApi(client())
sent = sign_in.request_code(CodeRequest(email=EMAIL))
assert sent.debug_otp is not None
verified = sign_in.verify_code(VerifyRequest(email=EMAIL, otp_id=sent.otp_id, otp=sent.debug_otp))
session = client(verified.session.token)
created = APIKeysApi(session).create_api_key(ApiKeyRequest())
credit = CreditApi(session)
credit.recharge(RechargeRequest(amount="1.00"))

models, tasks = ModelsApi(client(created.api_key)), TasksApi(client(created.api_key))
[model] = [each.id for each in models.list_models().data if each.id == "studio/image-1"]
priced = models.quote(QuoteRequest(model=model, input=INPUT))
wanted = CreateTaskRequest(model=model, input=INPUT, quote_id=priced.quote_id)
accepted = tasks.create_task(wanted, idempotency_key="one")
while (task := tasks.read_task(accepted.request_id)).status not in {"succeeded", "failed", "canceled"}:
    time.sleep(0.1)
refusal = None
try:
    tasks.read_task("task_none")
except ApiException as fault:
    refusal = fault.data
assert isinstance(refusal, ErrorResponse)
json.dump(
    {
        "status": task.status,
        "outputs": len(task.output),
        "cost": task.usage.cost_credits,
        "quoted": priced.estimate.credits,
        "listed": len(tasks.list_tasks(limit=10).data),
        "available": credit.read_account().available_balance,
        "code": refusal.error.code,
    },
    sys.stdout,
)
