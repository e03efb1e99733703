"""The card provider, called through the official ``stripe`` client, asynchronously on trio.

Each intent is created under our own idempotency key, the order's id, so that a retry after a crash or a lost
response finds the intent of the first attempt. The provider retains such keys for a day, as long as an order
lives.

Client secrets are passed on and never stored: the client's own logging, which would write whole responses, is
disabled, and no fault carries the provider's messages or bodies.

The client's HTTP transport is ours, so that the rules for outbound HTTP hold for it too: no proxy or certificate
from the environment, no redirects, a limit on the size of a response, and a timeout for each whole exchange. A
response that no provider would send (a proxy's page, a truncated object) becomes a plain connection error, since
the client would fail on it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, ClassVar, Final, TypeVar

import httpx2
import msgspec
import stripe
import trio
from stripe import _util as stripe_util

from holdfast.ledger.orders.snapshots import ProviderSnapshot
from holdfast.ledger.values import utc_now
from holdfast.providers.card.base import (
    CardDetails,
    CardFault,
    CardRateLimited,
    CardRejected,
    CardTimeout,
    CardUnavailable,
    IntentCreated,
    RefundMade,
    SetupIntentCreated,
)
from holdfast.providers.card.objects import (
    Malformed,
    Object,
    card_of,
    code,
    listed,
    object_id,
    reference,
    snapshot_of,
)
from holdfast.providers.outbound.connection_pool import BodyTooLarge, parse_retry_after, tls_context
from holdfast.telemetry.reports.conditions import TakeOutcome, ignore_outcome
from holdfast.telemetry.traces import span, trace_header

ANSWER_MAX_BYTES = 8 * 1024 * 1024
CONNECTIONS_MAX_COUNT = 32
KEEP_ALIVE_S = 15

_ERROR_WITHOUT_MESSAGE = b'{"error": {"type": "api_error"}}'

PAGE_COUNT: Final = 100
PAGES_MAX_COUNT: Final = 20
CLOCK_DIFFERENCE_S: Final = 600
REFUND_KEY: Final = "holdfast_refund"
REFUND_REQUEST: Final = "holdfast_refund_request"
"""The name of a refund's key in its metadata."""
RETRY_AFTER_DEFAULT_S: Final = 2
RETRY_AFTER_MAX_S: Final = 3600
REASON_CHARS_MAX: Final = 300
"""Of the text of a refusal, which is for logs."""
_RETRIEVE: Final = [
    "latest_charge.balance_transaction",
    "latest_charge.refunds.data.balance_transaction",
    "latest_charge.refunds.data.failure_balance_transaction",
]
_REFUNDS: Final = ["data.balance_transaction", "data.failure_balance_transaction"]
T = TypeVar("T")


class NoResponse(stripe.APIConnectionError):
    """No response of the provider arrived; ``retry`` is whether a retry may help."""

    def __init__(self, reason: str, *, retry: bool) -> None:
        super().__init__(reason, should_retry=retry)  # type: ignore[no-untyped-call]


class TimedOut(NoResponse):
    """One exchange took longer than allowed."""


class TrioHttp(stripe.HTTPClient):
    """One connection pool, ``timeout_s`` for each exchange; asynchronous calls only."""

    name: ClassVar[str] = "httpx"

    def __init__(self, *, timeout_s: float, connect_timeout_s: float) -> None:
        super().__init__()
        self._timeout_s = timeout_s
        self._http = httpx2.AsyncClient(
            trust_env=False,
            follow_redirects=False,
            verify=tls_context(),
            timeout=httpx2.Timeout(timeout_s, connect=connect_timeout_s),
            limits=httpx2.Limits(max_connections=CONNECTIONS_MAX_COUNT, keepalive_expiry=KEEP_ALIVE_S),
        )

    async def request_async(
        self, method: str, url: str, headers: Mapping[str, str], post_data: Any = None
    ) -> tuple[bytes, int, Mapping[str, str]]:
        """Make one exchange. Raises :class:`NoResponse` for anything that is not a response of the provider."""
        content = post_data.encode() if isinstance(post_data, str) else post_data
        try:
            with span("call cardprovider", "client"), trio.fail_after(self._timeout_s):
                sent = {**headers, **trace_header()}
                async with self._http.stream(method, url, content=content, headers=sent) as answer:
                    body = await _read(answer.aiter_bytes(), ANSWER_MAX_BYTES)
        except (trio.TooSlowError, httpx2.TimeoutException) as fault:
            error: NoResponse = TimedOut(type(fault).__name__, retry=True)
        except (httpx2.HTTPError, BodyTooLarge) as fault:
            error = NoResponse(type(fault).__name__, retry=True)
        else:
            if _sensible(answer.status_code, body):
                return body, answer.status_code, answer.headers
            if answer.status_code == 429 or answer.status_code >= 500:
                # Only the status is used: the body may be a proxy's and in any format.
                return _ERROR_WITHOUT_MESSAGE, answer.status_code, answer.headers
            error = NoResponse(f"unreadable response {answer.status_code}", retry=False)
        # Raised outside ``except`` so that the request, which holds the key, is not its cause.
        raise error

    async def sleep_async(self, secs: float) -> None:
        """Wait between retries."""
        await trio.sleep(secs)

    async def close_async(self) -> None:
        """Close connections."""
        await self._http.aclose()

    def close(self) -> None:
        """Do nothing: there is nothing to close without awaiting."""


def _sensible(status: int, body: bytes) -> bool:
    """Whether the official client can parse the response."""
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    if not isinstance(answer, dict):
        return False
    return 200 <= status < 300 or (status >= 400 and isinstance(answer.get("error"), dict))


async def _read(blocks: AsyncIterable[bytes], limit_bytes: int) -> bytes:
    """Read ``blocks`` to their end and return them.

    Raises :class:`BodyTooLarge` for more than ``limit_bytes``. Reading is then ended by cancelling it from within:
    the body is a chain of asynchronous generators, and one that is not read to its end would be closed by the
    garbage collector.
    """
    read = bytearray()
    with trio.CancelScope() as reading:
        async for block in blocks:
            if len(read) <= limit_bytes:
                read += block
            if len(read) > limit_bytes:
                reading.cancel()
    if len(read) > limit_bytes:
        raise BodyTooLarge(limit_bytes)
    return bytes(read)


class StripeProvider:
    """The provider account of ``api_key``. Create one inside the trio run that uses it, and close it.

    ``api_base`` None is the real provider. ``timeout_s`` bounds one exchange, ``total_timeout_s`` a whole call
    with its ``retries_count`` retries. ``automatic_payment_methods`` off leaves the choice of payment methods to
    the account's defaults, for servers that do not know the parameter. ``take_outcome`` takes the outcome of each
    call; a refusal is an answer.
    """

    def __init__(
        self,
        api_key: str,
        *,
        api_base: str | None = None,
        timeout_s: float = 10.0,
        connect_timeout_s: float = 5.0,
        total_timeout_s: float = 25.0,
        retries_count: int = 2,
        automatic_payment_methods: bool = True,
        take_outcome: TakeOutcome = ignore_outcome,
    ) -> None:
        if not api_key.strip():
            raise ValueError("the card provider needs an API key")
        _disable_logging()
        self._take_outcome = take_outcome
        self._total_timeout_s = total_timeout_s
        self._automatic_payment_methods = automatic_payment_methods
        self._http = TrioHttp(timeout_s=timeout_s, connect_timeout_s=connect_timeout_s)
        self._v1 = stripe.StripeClient(
            api_key,
            base_addresses={} if api_base is None else {"api": api_base.rstrip("/")},
            http_client=self._http,
            max_network_retries=retries_count,
        ).v1

    async def create_intent(
        self,
        order_id: str,
        account_id: str,
        amount_minor: int,
        currency: str,
        *,
        env: str,
        customer_id: str | None = None,
    ) -> IntentCreated:
        """Create the intent of an order, or return the one created before. Raises :class:`CardFault`."""
        params: Any = {
            "amount": amount_minor,
            "currency": currency.lower(),
            "metadata": {"order_id": order_id, "account_id": account_id, "env": env},
            "expand": ["latest_charge"],
            **({} if customer_id is None else {"customer": customer_id}),
            **self._payment_methods(),
        }
        options: Any = {"idempotency_key": f"{order_id}:create"}

        async def create() -> IntentCreated:
            intent = (await self._v1.payment_intents.create_async(params, options)).to_dict()
            return IntentCreated(object_id(intent), _client_secret_of(intent))

        return await self._call(create)

    async def retrieve(self, provider_payment_id: str, *, as_of: int) -> ProviderSnapshot:
        """Read a payment with its charge, refunds, disputes and balance transactions. Raises :class:`CardFault`."""
        return await self._call(lambda: self._retrieve(provider_payment_id, as_of))

    async def cancel_intent(self, provider_payment_id: str, *, as_of: int) -> ProviderSnapshot:
        """Cancel an intent, or read why it cannot be canceled. Raises :class:`CardFault`.

        Only a refusal because of the intent's state counts as an answer; the intent is then read again.
        """

        async def cancel() -> None:
            await self._v1.payment_intents.cancel_async(provider_payment_id)

        try:
            await self._call(cancel)
        except CardRejected as fault:
            if fault.provider_code != "payment_intent_unexpected_state":
                raise
        return await self.retrieve(provider_payment_id, as_of=as_of)

    async def refund(
        self, provider_payment_id: str, amount_minor: int | None, *, key: str, request: str
    ) -> RefundMade:
        """Refund a payment, or return the refund made before under this ``key``. Raises :class:`CardFault`.

        The provider forgets an idempotency key after a day, but the refund has it in its metadata for ever.
        """
        return await self._call(lambda: self._refund(provider_payment_id, amount_minor, key, request))

    async def create_customer(self, account_id: str, *, env: str) -> str:
        """Create the customer of an account, or return the one created within the last day."""
        params: Any = {"metadata": {"account_id": account_id, "env": env}}
        options: Any = {"idempotency_key": f"{account_id}:{env}:customer"}

        async def create() -> str:
            return object_id((await self._v1.customers.create_async(params, options)).to_dict())

        return await self._call(create)

    async def create_setup_intent(self, customer_id: str, account_id: str, *, env: str) -> SetupIntentCreated:
        """Create an intent by which the customer saves a card for charges without its cardholder."""
        params: Any = {
            "customer": customer_id,
            "usage": "off_session",
            "metadata": {"account_id": account_id, "env": env},
            **self._payment_methods(),
        }

        async def create() -> SetupIntentCreated:
            intent = (await self._v1.setup_intents.create_async(params)).to_dict()
            return SetupIntentCreated(object_id(intent), _client_secret_of(intent))

        return await self._call(create)

    async def retrieve_card(self, card_id: str) -> CardDetails:
        """Read a saved card."""

        async def retrieve() -> CardDetails:
            return card_of((await self._v1.payment_methods.retrieve_async(card_id)).to_dict())

        return await self._call(retrieve)

    async def detach_card(self, card_id: str) -> None:
        """Detach a card, which may be detached already."""

        async def detach() -> None:
            await self._v1.payment_methods.detach_async(card_id)

        try:
            await self._call(detach)
        except CardRejected as fault:
            if fault.provider_code == "resource_missing":
                return
            if (await self.retrieve_card(card_id)).customer_id is not None:
                raise

    async def charge_saved_card(
        self,
        order_id: str,
        account_id: str,
        amount_minor: int,
        currency: str,
        *,
        customer_id: str,
        card_id: str,
        env: str,
    ) -> str:
        """Charge a saved card; a card that needs its cardholder is declined. Returns the intent's id."""
        params: Any = {
            "amount": amount_minor,
            "currency": currency.lower(),
            "metadata": {"order_id": order_id, "account_id": account_id, "env": env},
            "customer": customer_id,
            "payment_method": card_id,
            "off_session": True,
            "confirm": True,
            "error_on_requires_action": True,
            **self._payment_methods(),
        }
        options: Any = {"idempotency_key": f"{order_id}:charge"}

        async def charge() -> str:
            try:
                return object_id((await self._v1.payment_intents.create_async(params, options)).to_dict())
            except stripe.CardError as declined:
                intent_id = _declined_intent(declined)
                if intent_id is None:
                    raise
                return intent_id

        return await self._call(charge)

    async def find_intent(self, order_id: str, customer_id: str, *, since: datetime) -> str | None:
        """Return the customer's intent that names the order in its metadata."""
        # The provider's clock may be behind ours.
        created = {"gte": int(since.timestamp()) - CLOCK_DIFFERENCE_S}

        async def find() -> str | None:
            made = await _all(self._v1.payment_intents.list_async, {"customer": customer_id, "created": created})
            return next((object_id(each) for each in made if _metadata_of(each).get("order_id") == order_id), None)

        return await self._call(find)

    async def close(self) -> None:
        """Close connections."""
        await self._http.close_async()

    def _payment_methods(self) -> dict[str, object]:
        if not self._automatic_payment_methods:
            return {}
        return {"automatic_payment_methods": {"enabled": True, "allow_redirects": "never"}}

    async def _retrieve(self, intent_id: str, as_of: int) -> ProviderSnapshot:
        expand: Any = {"expand": _RETRIEVE}
        intent = (await self._v1.payment_intents.retrieve_async(intent_id, expand)).to_dict()
        charge = intent.get("latest_charge")
        refunds: list[Object] = []
        disputes: list[Object] = []
        if isinstance(charge, dict):
            embedded = charge.get("refunds")
            if not isinstance(embedded, dict) or embedded.get("has_more"):
                refunds = await _all(self._v1.refunds.list_async, {"payment_intent": intent_id, "expand": _REFUNDS})
            disputes = await _all(self._v1.disputes.list_async, {"payment_intent": intent_id})
        return snapshot_of(intent, as_of=as_of, refunds=refunds, disputes=disputes)

    async def _refund(self, intent_id: str, amount_minor: int | None, key: str, request: str) -> RefundMade:
        for made in await _all(self._v1.refunds.list_async, {"payment_intent": intent_id}):
            if _metadata_of(made).get(REFUND_KEY) == key:
                return _refund_of(made)
        metadata = {REFUND_KEY: key, REFUND_REQUEST: request}
        params: Any = {"payment_intent": intent_id, "metadata": metadata}
        if amount_minor is not None:
            params["amount"] = amount_minor
        options: Any = {"idempotency_key": f"{intent_id}:refund:{key}"}
        return _refund_of((await self._v1.refunds.create_async(params, options)).to_dict())

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call within the total timeout and map its errors to :class:`CardFault`."""
        error: CardFault = CardTimeout("the whole call took too long")
        is_key_refused = False
        with trio.move_on_after(self._total_timeout_s):
            try:
                answer = await call()
                self._take_outcome(None)
                return answer
            except stripe.StripeError as fault:
                error = _fault(fault)
                is_key_refused = isinstance(fault, stripe.AuthenticationError | stripe.PermissionError)
            except Malformed as fault:
                error = CardUnavailable(f"unreadable response: {fault}")
        if is_key_refused:
            self._take_outcome("the API key is refused")
        else:
            self._take_outcome(None if isinstance(error, CardRejected | CardRateLimited) else str(error))
        # Raised outside ``except`` so that the provider's error, which holds whole responses, is not its context.
        raise error


async def _all(list_page: Callable[[Any], Awaitable[Any]], params: Mapping[str, object]) -> list[Object]:
    """Return every object of a list. A list that is too long is an error: a part would be taken for the whole."""
    found: list[Object] = []
    cursor: dict[str, str] = {}
    for _ in range(PAGES_MAX_COUNT):
        page = (await list_page({**params, "limit": PAGE_COUNT, **cursor})).to_dict()
        found += listed(page)
        if not page.get("has_more") or not listed(page):
            return found
        cursor = {"starting_after": object_id(found[-1])}
    raise CardUnavailable("a list of the provider has too many pages")


def _client_secret_of(intent: Object) -> str:
    client_secret = intent.get("client_secret")
    if not isinstance(client_secret, str) or not client_secret:
        raise Malformed("client_secret is missing")
    return client_secret


def _declined_intent(declined: stripe.CardError) -> str | None:
    """Return the intent that the provider names with a decline."""
    body = declined.json_body
    error = body.get("error") if isinstance(body, dict) else None
    return reference(error.get("payment_intent")) if isinstance(error, dict) else None


def _refund_of(refund: Object) -> RefundMade:
    amount_minor = refund.get("amount")
    if not isinstance(amount_minor, int):
        raise Malformed("the refund's amount is missing")
    status = code(refund.get("status")) or "unknown"
    return RefundMade(object_id(refund), amount_minor, status, str(_metadata_of(refund).get(REFUND_REQUEST, "")))


def _metadata_of(made: Object) -> Object:
    metadata = made.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _fault(fault: stripe.StripeError) -> CardFault:
    if isinstance(fault, TimedOut):
        return CardTimeout("no response in time")
    if isinstance(fault, stripe.APIConnectionError):
        return CardUnavailable(fault.user_message or type(fault).__name__)
    if isinstance(fault, stripe.RateLimitError):
        return CardRateLimited(_retry_after_s(fault.headers))
    status = fault.http_status or 0
    if status == 409 or not 400 <= status < 500:
        # 409: a request with the same key is still running there. It may be retried, like every server error.
        return CardUnavailable(f"status {status}")
    body = fault.json_body
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return CardRejected("unknown")
    message = error.get("message")
    return CardRejected(
        code(error.get("code")) or code(error.get("type")) or "unknown",
        param=code(error.get("param")),
        reason=" ".join(message.split())[:REASON_CHARS_MAX] if isinstance(message, str) else None,
    )


def _retry_after_s(headers: Mapping[str, str] | None) -> int:
    given = {name.lower(): value for name, value in (headers or {}).items()}.get("retry-after")
    pause_s = parse_retry_after(given, utc_now())
    return RETRY_AFTER_DEFAULT_S if pause_s is None else round(max(1.0, min(pause_s, RETRY_AFTER_MAX_S)))


def _disable_logging() -> None:
    """Disable the official client's telemetry, and its logging of responses."""
    stripe.enable_telemetry = False
    stripe.log = None
    # Read from the environment at import; otherwise one variable would make it print client secrets.
    stripe_util.STRIPE_LOG = None
    logging.getLogger("stripe").setLevel(logging.WARNING)
