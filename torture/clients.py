"""Concurrent clients of one account: they repeat unanswered requests and record every response."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import trio

from .card_stand_in import CardStandIn
from .media_stand_in import IMAGE, IMAGE_PRICE_MICRO, LINK, LINK_PRICE_MICRO
from .record import TOP_UPS_PER_DAY, AccountRecord, Create, Order, Recharge, micro
from .sender import PAUSE_S, Sender, code_of

SIGN_IN_S_MAX = 60.0
GRANTS_LAST_S = 15
KEPT_MAX = 4
"""How many of its sessions and keys a customer uses."""
REFUSED = frozenset({400, 402, 422})
RETRY_LATER = frozenset({429, 502, 503, 504})
IN_USE = "idempotency_key_in_use"


class NotSignedIn(Exception):
    """A customer could not sign in; the message contains the response."""


@dataclass
class Customer:
    """One account's clients. ``gate`` lets them work; ``busy`` counts running operations."""

    sender: Sender
    record: AccountRecord
    card: CardStandIn
    operator_token: str
    sessions: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    busy: int = 0
    gate: trio.Event = field(default_factory=trio.Event)
    _idle: trio.Event = field(default_factory=trio.Event)

    async def sign_in(self) -> None:
        """Sign in, create a key and save a card, with retries. Raises :class:`NotSignedIn` after a minute."""
        with trio.move_on_after(SIGN_IN_S_MAX):
            for step in (self.new_session, self.new_key, self.save_card):
                while True:
                    if await step():
                        break
                    await trio.sleep(PAUSE_S)
            return
        raise NotSignedIn(f"{self.record.email} could not sign in: {self.record.wrong_answers}")

    async def new_session(self, _: random.Random | None = None) -> bool:
        """Sign in once; returns whether that was answered. Every session ever returned must stay valid."""
        sent = await self.sender.send("POST", "/v2/control/auth/otp", body={"email": self.record.email})
        if not self._judge(sent, "code"):
            return False
        code = sent.json()  # type: ignore[union-attr] # judged
        proof = {"email": self.record.email, "otp_id": code["otp_id"], "otp": code["debug_otp"]}
        answer = await self.sender.send("POST", "/v2/control/auth/verify", body=proof)
        if answer is None or answer.status_code != 200:
            # Another client of this account may have asked for a newer code.
            return False
        body = answer.json()
        if self.record.account_id not in {"", body["account_id"]}:
            self._wrong(f"{self.record.email} was signed in to {body['account_id']}: another account")
        self.record.account_id = body["account_id"]
        self.sessions = [*self.sessions[-KEPT_MAX + 1 :], body["session"]["token"]]
        return True

    async def new_key(self, rng: random.Random | None = None) -> bool:
        """Create an API key; returns whether that was answered. Every key ever returned must stay valid.

        All but the first have a limit that is soon reached.
        """
        most = None if rng is None else f"{rng.uniform(0.5, 5):.2f}"
        body = {} if most is None else {"limit": {"credits": most, "window": "total"}}
        answer = await self._ask("POST", "/v2/control/api-keys", body, as_session=True)
        if answer is None or answer.status_code != 200:
            if answer is None or code_of(answer) != "api_key_limit_reached":
                self._judge(answer, "new key")
            return False
        if most is None:
            self.keys = [answer.json()["api_key"]]
        else:
            self.keys = [self.keys[0], *self.keys[1:][-KEPT_MAX + 2 :], answer.json()["api_key"]]
            self.record.limits[answer.json()["api_key_id"]] = micro(most)
        return True

    async def save_card(self) -> bool:
        """Save a card; returns whether the service could be asked to."""
        answer = await self._ask("POST", "/v2/control/cards/setup", as_session=True)
        if not self._judge(answer, "card setup"):
            return False
        await self.card.save_card(answer.json()["setup_intent_id"])  # type: ignore[union-attr] # judged
        return True

    async def work(self, rng: random.Random) -> None:
        """Perform one random operation after another while the gate is open, forever."""
        actions = (
            (34, self.create),
            (9, self.repeat_create),
            (13, self.cancel),
            (14, self.read_task),
            (4, self.list_tasks),
            (6, self.retry),
            (8, self.recharge),
            (4, self.grant),
            (2, self.top_up),
            (6, self.pay_sandbox),
            (4, self.pay_card),
            (2, self.read_totals),
            (1, self.new_session),
            (1, self.new_key),
        )
        weights = [weight for weight, _ in actions]
        while True:
            await self.gate.wait()
            self.busy += 1
            try:
                _, action = rng.choices(actions, weights)[0]
                await action(rng)
            finally:
                self.busy -= 1
                if not self.busy:
                    self._idle.set()
                    self._idle = trio.Event()
            await trio.sleep(rng.uniform(0, 0.02))

    async def until_idle(self) -> None:
        """Return once no operation is running."""
        while self.busy:
            await self._idle.wait()

    # ------------------------------------------------------------------------------------------------------ tasks

    async def create(self, rng: random.Random) -> None:
        """Create a task, two times of three under a key, which is repeated until the outcome is known."""
        number = self.sender.witness.next_number()
        pictures = rng.randint(1, 4)
        is_link = rng.random() < 0.2
        create = Create(
            number,
            LINK_PRICE_MICRO if is_link else pictures * IMAGE_PRICE_MICRO,
            f"create-{number}" if rng.random() < 0.67 else None,
            will_fail=rng.random() < 0.15,
            pictures=1 if is_link else pictures,
        )
        self.record.creates[number] = create
        self.sender.witness.creates += 1
        await self._send_create(create, "/v2/task/create", self._body_of(create, pictures, is_link=is_link))

    def _body_of(self, create: Create, pictures: int, *, is_link: bool) -> dict[str, Any]:
        prompt = f"{create.number} {'fail' if create.will_fail else 'picture'}"
        asked: dict[str, Any] = {"prompt": prompt} if is_link else {"prompt": prompt, "n": pictures}
        return {"model": LINK if is_link else IMAGE, "input": asked, "metadata": {"number": str(create.number)}}

    async def repeat_create(self, _: random.Random) -> None:
        """Repeat an answered request under its key: it must return the same task."""
        known = [
            each for each in self.record.creates.values() if each.key and each.request_id and not each.retry_of
        ]
        if known:
            create = known[-1]
            pictures = create.price_micro // IMAGE_PRICE_MICRO
            is_link = create.price_micro == LINK_PRICE_MICRO
            await self._send_create(create, "/v2/task/create", self._body_of(create, pictures, is_link=is_link))

    async def retry(self, rng: random.Random) -> None:
        """Retry an ended task, once each."""
        retried = {each.retry_of for each in self.record.creates.values()}
        known = {each.request_id: each for each in self.record.creates.values() if each.request_id}
        ended = [known[each] for each in self.record.ends if each in known and each not in retried]
        if not ended:
            return
        first = rng.choice(ended)
        number = self.sender.witness.next_number()
        key = f"retry-{number}" if rng.random() < 0.67 else None
        again = Create(number, first.price_micro, key, first.will_fail, first.pictures, first.request_id)
        self.record.creates[number] = again
        self.sender.witness.creates += 1
        await self._send_create(again, f"/v2/task/{first.request_id}/retry", None)

    async def _send_create(self, create: Create, path: str, body: Any) -> None:
        while True:
            answer = await self._ask("POST", path, body, key=create.key)
            if answer is not None and answer.status_code == 200:
                request_id = answer.json()["request_id"]
                if create.request_id not in {None, request_id}:
                    self._wrong(f"{create.key} was answered {create.request_id} and then {request_id}")
                create.request_id, create.outcome = request_id, "done"
                return
            if self._is_refused(answer, "create"):
                if create.outcome == "done":
                    self._wrong(f"{create.key} was answered {create.request_id} and is refused: {answer}")
                create.outcome = "refused"
                return
            if create.key is None:
                return
            await trio.sleep(PAUSE_S)

    async def cancel(self, rng: random.Random) -> None:
        """Cancel one of the newest tasks and read its outcome."""
        request_id = self._some_task(rng, newest=5)
        while request_id is not None:
            ended = frozenset(self.record.ends)
            answer = await self._ask("POST", f"/v2/task/{request_id}/cancel")
            if answer is not None and answer.status_code == 200:
                self.record.note_end(request_id, answer.json()["status"], ended=ended)
                return
            if answer is not None and answer.status_code == 409 and code_of(answer) == "task_already_terminal":
                return
            self._judge(answer, f"cancel of {request_id}")
            await trio.sleep(PAUSE_S)

    async def read_task(self, rng: random.Random) -> None:
        """Read a task that was returned earlier, sometimes by waiting for it: it must exist, and not go back."""
        request_id = self._some_task(rng, newest=50)
        if request_id is not None:
            ended, version = frozenset(self.record.ends), self.record.versions.get(request_id, 0)
            query = rng.choice(("", "", "", "?wait=2"))
            answer = await self._ask("GET", f"/v2/task/{request_id}{query}")
            if answer is not None and self._judge(answer, f"read of {request_id}"):
                self.record.note_end(request_id, answer.json()["status"], ended=ended)
                # The first number of the entity tag is that of the task's version.
                self.record.note_version(
                    request_id, int(answer.headers["ETag"][3:].partition(".")[0]), at_least=version
                )

    async def list_tasks(self, _: random.Random) -> None:
        """Read the first page of tasks."""
        ended = frozenset(self.record.ends)
        answer = await self._ask("GET", "/v2/task/list?limit=20")
        if self._judge(answer, "list of tasks"):
            for task in answer.json()["data"]:  # type: ignore[union-attr] # judged
                self.record.note_end(task["request_id"], task["status"], ended=ended)

    def _some_task(self, rng: random.Random, *, newest: int) -> str | None:
        known = self.record.task_ids()
        return rng.choice(known[-newest:]) if known else None

    # ----------------------------------------------------------------------------------------------------- credit

    async def recharge(self, rng: random.Random) -> None:
        """Add sandbox credit of a unique amount."""
        number = self.sender.witness.next_number()
        key = f"recharge-{number}" if rng.random() < 0.67 else None
        await self._recharge(Recharge(number, number, key))

    async def recharge_first(self, credits_count: int) -> None:
        """Add the first credit."""
        number = self.sender.witness.next_number()
        await self._recharge(Recharge(number, micro(str(credits_count)) + number, f"recharge-{number}"))

    async def grant(self, rng: random.Random) -> None:
        """Grant promotional credit of a unique amount as an operator, which mostly expires soon."""
        number = self.sender.witness.next_number()
        until = datetime.now(UTC) + timedelta(seconds=rng.uniform(1, GRANTS_LAST_S))
        expires_at = until.isoformat() if rng.random() < 0.8 else None
        await self._recharge(Recharge(number, micro("1") + number, f"grant-{number}", kind="grant"), expires_at)

    async def top_up(self, _: random.Random) -> None:
        """Switch automatic top-up on with a threshold that is crossed already, or soon."""
        account = await self._ask("GET", "/v2/control/account", as_session=True)
        if not self._judge(account, "account"):
            return
        available = micro(account.json()["available_balance"])  # type: ignore[union-attr] # judged
        settings = {
            "enabled": True, "below": _credits(max(1, available + 1)), "amount": "5.00",
            "max_per_day": TOP_UPS_PER_DAY, "max_per_month": 1000,
        }  # fmt: skip
        answer = await self._ask("PUT", "/v2/control/auto-top-up", settings, as_session=True)
        if answer is None or code_of(answer) != "card_required":  # the webhook that names the card may be lost
            self._judge(answer, "top-up")

    async def _recharge(self, recharge: Recharge, expires_at: str | None = None) -> None:
        self.record.recharges[recharge.number] = recharge
        body: dict[str, Any] = {"amount": _credits(recharge.amount_micro)}
        while True:
            if recharge.kind == "grant":
                answer = await self.sender.send(
                    "POST",
                    f"/ops/api/accounts/{self.record.account_id}/grants",
                    body=body | {"expires_at": expires_at, "reason": "torture"},
                    token=self.operator_token,
                    headers={"Idempotency-Key": recharge.key or ""},
                )
            else:
                path = "/v2/control/sandbox/recharge"
                answer = await self._ask("POST", path, body, key=recharge.key, as_session=True)
            if answer is not None and answer.status_code == 200:
                recharge.operation_id, recharge.outcome = answer.json()["operation_id"], "done"
                return
            if self._is_refused(answer, recharge.kind):
                if recharge.kind == "grant" and "expires_at" not in answer.text:  # type: ignore[union-attr] # an answer
                    self._wrong(f"grant: {answer}")
                recharge.outcome = "refused"
                return
            if recharge.key is None:
                return
            await trio.sleep(PAUSE_S)

    async def pay_sandbox(self, rng: random.Random) -> None:
        """Order sandbox credit, and mostly pay it, now and then more than once."""
        created = await self._order("sandbox", rng)
        if created is None or rng.random() < 0.2:
            return
        order, callback = created[0], created[1]["callback"]
        order.paid = "unknown"
        headers = {callback["signature_header"]: callback["signature"]}
        for _ in range(rng.choice((1, 1, 2))):
            while True:
                path = "/v2/control/payments/sandbox/callback"
                answer = await self.sender.send("POST", path, body=callback["payload"], headers=headers)
                if answer is not None and answer.status_code == 200:
                    order.paid = "yes"
                    order.credited |= answer.json()["status"] == "credited"
                    break
                if answer is not None and answer.status_code == 409 and not order.credited:
                    return  # Too late: a clock that was moved has ended it.
                self._judge(answer, f"callback of {order.order_id}")
                await trio.sleep(PAUSE_S)

    async def pay_card(self, rng: random.Random) -> None:
        """Order credit by card, and mostly pay it at the provider, which sends a webhook."""
        created = await self._order("cardprovider", rng)
        if created is None or rng.random() < 0.2:
            return
        order = created[0]
        order.payment_id = created[1]["provider_payment_id"]
        order.paid = "unknown"
        if order.payment_id is not None and await self.card.pay(order.payment_id):
            order.paid = "yes"

    async def _order(self, provider: str, rng: random.Random) -> tuple[Order, dict[str, Any]] | None:
        number = self.sender.witness.next_number()
        cents = 100 + rng.randint(0, 9900)
        key = f"order-{number}" if rng.random() < 0.67 else None
        order = Order(number, "sandbox" if provider == "sandbox" else "cardprovider", cents * 10_000, key)
        self.record.orders[number] = order
        body = {"amount": f"{cents // 100}.{cents % 100:02d}"}
        while True:
            path = f"/v2/control/payments/{provider}"
            answer = await self._ask("POST", path, body, key=key, as_session=True)
            if answer is not None and answer.status_code == 200:
                found: dict[str, Any] = answer.json()
                order.order_id, order.operation_id = found["order_id"], found["operation_id"]
                order.outcome = "done"
                return order, found
            if self._is_refused(answer, f"{provider} order") or key is None:
                return None
            if answer is not None and code_of(answer) == "too_many_open_orders":
                return None
            await trio.sleep(PAUSE_S)

    async def read_totals(self, _: random.Random) -> None:
        """Read the account: its three totals must agree."""
        answer = await self._ask("GET", "/v2/control/account", as_session=True)
        if self._judge(answer, "totals"):
            body = answer.json()  # type: ignore[union-attr] # judged
            balance, held, available = (micro(body[n]) for n in ("balance", "held_total", "available_balance"))
            if balance - held != available or available < 0 or held < 0:
                self._wrong(f"totals {body}")

    # ---------------------------------------------------------------------------------------------- whole account

    async def read_all(self, path: str, *, as_session: bool) -> list[dict[str, Any]]:
        """Read a whole list, by pages. Raises ``RuntimeError`` if a page is not answered within a minute."""
        found: list[dict[str, Any]] = []
        query: str | None = "?limit=100"
        while query is not None:
            page = await self.read(path + query, as_session=as_session)
            found += page["data"]
            cursor = page["next_cursor"]
            query = None if cursor is None else f"?limit=100&cursor={cursor}"
        return found

    async def read(self, path: str, *, as_session: bool) -> dict[str, Any]:
        """Read, repeating until answered. Raises ``RuntimeError`` after a minute."""
        answer = None
        with trio.move_on_after(60):
            while True:
                answer = await self._ask("GET", path, as_session=as_session)
                if answer is not None and answer.status_code == 200:
                    body: dict[str, Any] = answer.json()
                    return body
                await trio.sleep(PAUSE_S)
        raise RuntimeError(f"{path} was answered {answer} for a minute")

    # --------------------------------------------------------------------------------------------------- judgement

    async def _ask(
        self, method: str, path: str, body: Any = None, *, key: str | None = None, as_session: bool = False
    ) -> httpx2.Response | None:
        headers = {} if key is None else {"Idempotency-Key": key}
        token = self.sender.rng.choice(self.sessions if as_session else self.keys)
        return await self.sender.send(method, path, body=body, token=token, headers=headers)

    def _is_refused(self, answer: httpx2.Response | None, what: str) -> bool:
        """Whether the request certainly has no effect; any other failure is checked."""
        if answer is None:
            return False
        if answer.status_code in REFUSED or (answer.status_code == 409 and code_of(answer) != IN_USE):
            return True
        if answer.status_code != 409:
            self._judge(answer, what)
        return False

    def _judge(self, answer: httpx2.Response | None, what: str) -> bool:
        """Whether a request succeeded; a failure that no fault excuses is recorded."""
        if answer is None or answer.status_code in RETRY_LATER:
            return False
        if answer.status_code == 200:
            return True
        if not (answer.status_code == 409 and code_of(answer) == IN_USE):
            self._wrong(f"{what}: {answer.status_code} {answer.text[:300]}")
        return False

    def _wrong(self, text: str) -> None:
        if len(self.record.wrong_answers) < 20:
            self.record.wrong_answers.append(text)


def _credits(amount_micro: int) -> str:
    return f"{amount_micro // 1_000_000}.{amount_micro % 1_000_000:06d}"
