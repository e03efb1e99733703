"""The demonstration: starts a service on an empty data folder and walks through it as a customer would.

Every step checks the numbers in the responses (the hold is the estimate, the charge is the quote, balance less held
is what is available), so that a demonstration that succeeds proves something. The first step that fails is named,
with the end of the service's log, and the exit code is 1.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx2
from PIL import Image
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from holdfast.settings.settings import PREFIX, environment

START_S: Final = 180.0
STOP_S: Final = 40.0
AUDIT_S: Final = 120.0
TAIL_LINES: Final = 40

OUTPUT: Final = Path("demo-output")
EMAIL: Final = "ada@example.com"
RECHARGE: Final = "10.00"
CARD_ORDER: Final = "25.00"
TEST_CARD: Final = "pm_card_visa"
MODEL: Final = "studio/image-1"
PICTURE: Final = {"prompt": "a lighthouse at dusk, calm sea", "n": 4, "width": 1536, "height": 1536, "seed": 7}
LONG_WORK: Final = {"prompt": "a city of glass in the rain", "n": 4, "width": 1536, "height": 1536}
TASK_S: Final = 120.0
PAYMENT_S: Final = 30.0
POLL_S: Final = 0.1
SHOW_S: Final = 1
"""How often a task that has not ended is shown."""
ENDED: Final = frozenset({"succeeded", "failed", "canceled"})


class ServiceFailed(Exception):
    """The service did not start or stop; the message says how."""


class DemoService:
    """A context manager for the service; on exit it ends the process and deletes its folder."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
        # It contains only the data folder, which has a private mode of its own.
        self._folder.chmod(0o711)
        self.data_dir = self._folder / "var"
        self._log = self._folder / "service.log"
        self._process: subprocess.Popen[bytes] | None = None
        # Settings in the caller's environment belong to another service.
        inherited = {name: value for name, value in environment().items() if not name.startswith(PREFIX)}
        self._environment = {
            **inherited,
            f"{PREFIX}ENV": "development",
            f"{PREFIX}HOST": "127.0.0.1",
            f"{PREFIX}PORT": "0",
            f"{PREFIX}DATA_DIR": str(self.data_dir),
            f"{PREFIX}LOG_FORMAT": "json",
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _fault: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> str:
        """Start the service and return its URL once it is ready. Raises :class:`ServiceFailed`."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", "serve"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise ServiceFailed(f"it ended with exit code {self._process.returncode}")
            url = self._announced_url()
            if url is not None:
                return url
            time.sleep(0.05)
        raise ServiceFailed(f"it was not ready after {START_S:.0f} s")

    def card_url(self) -> str:
        """Return the URL of the service's card emulator, once the service is ready."""
        return f"http://127.0.0.1:{(self.data_dir / 'card.port').read_text().strip()}"

    def stop(self) -> int:
        """Send SIGTERM to the service and return its exit code. Raises :class:`ServiceFailed`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise ServiceFailed(f"it still runs {STOP_S:.0f} s after SIGTERM") from None

    def audit(self) -> tuple[int, str]:
        """Run ``holdfast audit`` on the data folder; returns its exit code and output."""
        try:
            done = subprocess.run(
                [sys.executable, "-m", "holdfast", "audit"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=AUDIT_S,
            )
        except subprocess.TimeoutExpired:
            raise ServiceFailed(f"the audit takes more than {AUDIT_S:.0f} s") from None
        return done.returncode, (done.stdout + done.stderr).strip()

    def log_tail(self) -> str:
        """Return the last lines of the service's log."""
        if not self._log.exists():
            return "(nothing)"
        return "\n".join(self._log.read_text("utf-8", "replace").splitlines()[-TAIL_LINES:]) or "(nothing)"

    def _announced_url(self) -> str | None:
        """Return the URL from the service's log, once it is logged."""
        for line in self._log.read_text("utf-8", "replace").splitlines():
            if '"holdfast serves"' in line:
                try:
                    return str(json.loads(line)["url"])
                except ValueError:
                    return None  # the line is not complete yet
        return None


class StepFailed(Exception):
    """A step did not give the expected result. The message names the step and the difference."""


def main() -> int:
    """Run the demonstration. Returns 0, or 1 with the reason on the terminal."""
    console = Console(highlight=False, soft_wrap=True)
    with DemoService() as service:
        try:
            _walk(console, service)
        except StepFailed as failure:
            console.print(f"\n[bold red]The demonstration failed.[/] {escape(str(failure))}")
            console.print("The end of the service's log:", style="dim")
            console.print(escape(service.log_tail()), style="dim")
            return 1
    console.print(f"\n[bold green]Every step succeeded.[/] The pictures are in {OUTPUT.absolute()}")
    return 0


def _walk(console: Console, service: DemoService) -> None:
    step = _Steps(console)
    with step("start the service"):
        url = service.start()
        step.detail(f"it listens on {url}, its data is in {service.data_dir}")
    with httpx2.Client(base_url=url, timeout=20.0, trust_env=False) as http:
        journey = _Journey(http, step)
        journey.sign_in()
        journey.prepare_account()
        journey.run_task()
        journey.cancel_task()
        journey.sum_usage()
        journey.pay_by_card(service.card_url())
        console.print(journey.totals)
    with step("stop the service"):
        code = service.stop()
        _expect(code == 0, f"SIGTERM ended it with exit code {code}")
        step.detail("exit code 0")
    with step("audit the ledger"):
        code, verdict = service.audit()
        step.detail(verdict)
        _expect(code == 0, f"holdfast audit ended with exit code {code}")


class _Steps:
    """Prints the current step, and turns any error in it into a failure of that step."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._numbers = itertools.count(1)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self.console.print(f"[bold]{next(self._numbers):2}. {escape(name)}[/]")
        try:
            yield
        except (StepFailed, ServiceFailed, httpx2.HTTPError, KeyError, IndexError, TypeError, OSError) as fault:
            reason = str(fault) if isinstance(fault, StepFailed | ServiceFailed) else repr(fault)
            raise StepFailed(f"Step '{name}': {reason}.") from fault

    def detail(self, text: str) -> None:
        """Print a detail of the current step."""
        for line in text.splitlines():
            self.console.print(f"    {escape(line)}", style="dim")


class _Journey:
    """The customer, with the credentials received so far."""

    def __init__(self, http: httpx2.Client, step: _Steps) -> None:
        self._http = http
        self._step = step
        self._session = ""
        self._key = ""
        self.totals = Table(title="Credit and usage", title_justify="left")
        for column in ("when", "balance", "held", "available", "tasks", "charged"):
            self.totals.add_column(column, justify="left" if column == "when" else "right", no_wrap=True)

    def sign_in(self) -> None:
        """Sign in with an e-mail address and the code sent to it; the first time this creates an account."""
        with self._step(f"sign in as {EMAIL}"):
            sent = self._call("POST", "/v2/control/auth/otp", json={"email": EMAIL})
            proof = {"email": EMAIL, "otp_id": sent["otp_id"], "otp": sent["debug_otp"]}
            verified = self._call("POST", "/v2/control/auth/verify", json=proof)
            self._session = verified["session"]["token"]
            self._step.detail(
                f"account {verified['account_id']}, session until {verified['session']['expires_at']}"
            )
            self._account("at the start", balance="0.00", held="0.00")

    def prepare_account(self) -> None:
        """Do what the readiness endpoint reports as missing."""
        with self._step("ask what is missing for a first call"):
            readiness = self._call("GET", "/v2/control/first-call", self._session)
            _expect(not readiness["ready"], "a new account is already ready")
            self._step.detail(f"suggested: {', '.join(readiness['suggested_next_actions'])}")
        with self._step("create an API key"):
            created = self._call("POST", "/v2/control/api-keys", self._session, json={"name": "demo"})
            self._key = created["api_key"]
            self._step.detail(f"{created['api_key_prefix']}…, scopes {', '.join(created['scopes'])}")
        with self._step(f"add {RECHARGE} of sandbox credit"):
            credited = self._call(
                "POST", "/v2/control/sandbox/recharge", self._session, json={"amount": RECHARGE}, key="recharge"
            )
            self._step.detail(f"operation {credited['operation_id']}")
            self._account("after adding credit", balance=RECHARGE, held="0.00")
            readiness = self._call("GET", "/v2/control/first-call", self._session)
            _expect(readiness["ready"], "the account has a key and credit, and is not ready")

    def run_task(self) -> None:
        """Quote, create, wait, download, and check the charge."""
        with self._step("list the models"):
            models = {model["id"]: model for model in self._call("GET", "/v2/models")["data"]}
            for name, model in models.items():
                estimate, only = model["estimate"], " (priced only)" if model["priced_only"] else ""
                costs = f"its example costs {estimate['credits']}" if estimate else "it has no example"
                self._step.detail(f"{name}{only}: {costs}")
            _expect(MODEL in models, f"the catalog lacks {MODEL}")
        with self._step(f"quote {PICTURE['n']} pictures"):
            quote = self._call("POST", "/v2/quote", self._key, json={"model": MODEL, "input": PICTURE})
            price = Decimal(quote["estimate"]["credits"])
            self._step.detail(f"{price} credits ({quote['estimate']['basis']}), valid until {quote['expires_at']}")
        with self._step("create the task at that price"):
            order = {"model": MODEL, "input": PICTURE, "quote_id": quote["quote_id"]}
            created = self._call("POST", "/v2/task/create", self._key, json=order, key="pictures")
            estimate = Decimal(created["estimated_cost"]["credits"])
            _expect(estimate == price, f"quoted {price}, and the task is estimated at {estimate}")
            self._hold_of(created["request_id"], estimate, "while the task runs")
        with self._step("wait for the task"):
            task = self._wait(created["request_id"])
            _expect(task["status"] == "succeeded", f"the task ended as {task['status']}: {task['error']}")
        with self._step("download the pictures"):
            _expect(len(task["output"]) == PICTURE["n"], f"the output has {len(task['output'])} pictures")
            for item in task["output"]:
                self._fetch(item)
        with self._step("check the charge"):
            charged = self._usage()[created["request_id"]]
            _expect(charged == price, f"quoted {price}, charged {charged}")
            self._account("after the task", balance=str(Decimal(RECHARGE) - price), held="0.00")
            self._step.detail(f"charged {charged} credits, as quoted; nothing is held")

    def cancel_task(self) -> None:
        """Cancel a task: its whole hold is released."""
        balance = str(Decimal(self._summary()["balance"]))
        with self._step("create another task and cancel it"):
            created = self._call("POST", "/v2/task/create", self._key, json={"model": MODEL, "input": LONG_WORK})
            self._hold_of(created["request_id"], Decimal(created["estimated_cost"]["credits"]), "second task held")
            canceled = self._call("POST", f"/v2/task/{created['request_id']}/cancel", self._key)
            _expect(canceled["status"] == "canceled", f"after the cancel the task is {canceled['status']}")
            _expect(self._usage()[created["request_id"]] == 0, "a canceled task was charged")
            self._account("second task canceled", balance=balance, held="0.00")
            self._step.detail("the whole hold was released, nothing was charged")

    def sum_usage(self) -> None:
        """Sum the usage by the tasks' status."""
        with self._step("sum the usage by status"):
            sums = self._call("GET", "/v2/usage/totals?group_by=status", self._session)
            costs = self._usage()
            _expect(sums["count"] == len(costs), f"the totals have {sums['count']} tasks, the log {len(costs)}")
            charged = sum(costs.values(), Decimal(0))
            _expect(Decimal(sums["cost_credits"]) == charged, f"the totals are {sums['cost_credits']}")
            for each in sums["data"]:
                self._step.detail(f"{each['status']}: {each['count']} tasks, {each['cost_credits']} credits")

    def pay_by_card(self, provider_url: str) -> None:
        """Order credit by card, pay as the customer's browser would, and wait for the webhook."""
        before = Decimal(self._summary()["balance"])
        with self._step(f"order {CARD_ORDER} of credit by card"):
            order = self._call(
                "POST", "/v2/control/payments/cardprovider", self._session, json={"amount": CARD_ORDER}, key="card"
            )
            _expect(order["status"] == "pending", f"a new order is {order['status']}")
            self._step.detail(f"order {order['order_id']}, payment {order['provider_payment_id']}")
        with self._step("pay at the card emulator"):
            paid = self._http.post(
                f"{provider_url}/v1/payment_intents/{order['provider_payment_id']}/confirm",
                data={"client_secret": order["client_secret"], "payment_method": TEST_CARD},
                headers={"Authorization": f"Bearer {order['publishable_key']}"},
            )
            _expect(paid.status_code == 200, f"the provider responded {paid.status_code}: {paid.text}")
            self._step.detail(f"its page with refunds and disputes is {provider_url}")
        with self._step("wait for the provider's webhook"):
            credited = self._wait_for_payment(order["order_id"])
            _expect(credited["status"] == "credited", f"the order ended as {credited['status']}")
            self._account("paid by card", balance=str(before + Decimal(CARD_ORDER)), held="0.00")
        with self._step("sum up the statement"):
            entries = self._call("GET", "/v2/control/ledger?limit=100", self._session)["data"]
            total = sum((Decimal(entry["balance_change"]) for entry in entries), Decimal(0))
            _expect(total == Decimal(self._summary()["balance"]), f"its entries sum to {total}")
            self._step.detail(f"{len(entries)} operations sum to {total}")

    # ------------------------------------------------------------------------------------------------------ parts

    def _call(
        self, method: str, path: str, credential: str = "", *, json: Any = None, key: str | None = None
    ) -> Any:
        headers = {"Authorization": f"Bearer {credential}"} if credential else {}
        if key is not None:
            headers["Idempotency-Key"] = key
        response = self._http.request(method, path, json=json, headers=headers)
        _expect(response.status_code == 200, f"{method} {path} returned {response.status_code}: {response.text}")
        return response.json()

    def _summary(self) -> dict[str, str]:
        summary: dict[str, str] = self._call("GET", "/v2/control/account", self._session)
        return summary

    def _account(self, when: str, *, balance: str, held: str) -> None:
        """Read the totals, add them to the table, and check them."""
        found = self._summary()
        costs = self._usage()
        self.totals.add_row(
            when,
            found["balance"],
            found["held_total"],
            found["available_balance"],
            str(len(costs)),
            str(sum(costs.values(), Decimal("0.00"))),
        )
        _expect(Decimal(found["balance"]) == Decimal(balance), f"the balance is {found['balance']}, not {balance}")
        _expect(Decimal(found["held_total"]) == Decimal(held), f"{found['held_total']} is held, not {held}")
        available = Decimal(found["balance"]) - Decimal(found["held_total"])
        _expect(Decimal(found["available_balance"]) == available, "balance less held is not what is available")

    def _hold_of(self, request_id: str, estimate: Decimal, when: str) -> None:
        """Check that the held credit is the task's estimate, unless the task has already ended."""
        balance = self._summary()["balance"]
        try:
            self._account(when, balance=balance, held=str(estimate))
        except StepFailed:
            if self._task(request_id)["status"] not in ENDED:
                raise
        self._step.detail(f"{request_id} holds {estimate} credits")

    def _task(self, request_id: str, *, wait_s: int = 0) -> dict[str, Any]:
        task: dict[str, Any] = self._call("GET", f"/v2/task/{request_id}?wait={wait_s}", self._key)
        return task

    def _usage(self) -> dict[str, Decimal]:
        """Return what each request has cost so far."""
        log = self._call("GET", "/v2/usage/logs", self._session)["data"]
        return {entry["request_id"]: Decimal(entry["cost_credits"]) for entry in log}

    def _wait(self, request_id: str) -> dict[str, Any]:
        """Wait until the task has ended, showing its progress."""
        deadline = time.monotonic() + TASK_S
        with self._progress() as show:
            while True:
                task = self._task(request_id, wait_s=SHOW_S)
                show(task)
                if task["status"] in ENDED:
                    return task
                _expect(time.monotonic() < deadline, f"the task is still {task['status']} after {TASK_S:.0f} s")

    def _wait_for_payment(self, order_id: str) -> dict[str, Any]:
        """Poll until the order is no longer pending."""
        deadline = time.monotonic() + PAYMENT_S
        while True:
            order: dict[str, Any] = self._call("GET", f"/v2/control/payments/{order_id}", self._session)
            if order["status"] != "pending":
                return order
            _expect(time.monotonic() < deadline, f"the order is still pending after {PAYMENT_S:.0f} s")
            time.sleep(POLL_S)

    @contextmanager
    def _progress(self) -> Iterator[Callable[[dict[str, Any]], None]]:
        """Yield a function that shows progress: a bar on a terminal, elsewhere a line for each change."""
        console = self._step.console
        bar = Progress(
            TextColumn("    {task.description:<24}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            console=console,
        )
        bar_id = bar.add_task("queued", total=100)
        shown = 0

        def show(task: dict[str, Any]) -> None:
            nonlocal shown
            entries = task["provider_progress"]
            for entry in entries[shown:]:
                percent = 100 if entry["status"] == "succeeded" else entry["percent"]
                description = " ".join(part for part in (entry["status"], entry["stage"]) if part)
                bar.update(bar_id, description=description, completed=percent)
                if not console.is_terminal:
                    self._step.detail(
                        f"{entry['ts']}  {description:<28}" + ("" if percent is None else f"{percent:>4}%")
                    )
            shown = len(entries)

        with bar if console.is_terminal else nullcontext():
            yield show

    def _fetch(self, item: dict[str, Any]) -> None:
        """Download a result, verify it, and save it."""
        response = self._http.get(item["url"])
        _expect(response.status_code == 200, f"its link returned {response.status_code}")
        _expect(
            hashlib.sha256(response.content).hexdigest() == item["sha256"], "its content does not match its hash"
        )
        with Image.open(io.BytesIO(response.content)) as image:
            image.load()
            _expect(image.format == "PNG", f"it is a {image.format}")
            size = (PICTURE["width"], PICTURE["height"])
            _expect(image.size == size, f"asked for {size}, got {image.size}")
        OUTPUT.mkdir(exist_ok=True)
        path = OUTPUT / f"lighthouse-{item['index'] + 1}.png"
        path.write_bytes(response.content)
        self._step.detail(f"{path}: PNG, {item['width']} x {item['height']}, {item['bytes']} bytes")


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise StepFailed(message)
