"""``POST /v2/task/create`` over HTTP, compared with an empty endpoint on unmodified quart-trio and hypercorn.

Both run as processes of their own, alternately, under the same client with the same number of connections. Two
ratios are printed: the median of neighbouring runs, where the service works through its queue while the empty
endpoint is measured, and creates compared with the empty endpoint measured first, with no other load. A create
authenticates the key, validates and prices the input, holds the credit, writes seven rows and responds when they
are durable. The development studio works through the queue at the same time, as in ``make run``.

Run: python -m benchmarks.create [--seconds 4] [--connections 32] [--rounds 5]
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from benchmarks import load
from benchmarks.conditions import describe

ACCOUNTS = 8
BODY = b'{"model":"studio/image-1","input":{"prompt":"a lighthouse at dusk","width":256,"height":256}}'


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(command: list[str], url: str, **environment: str) -> Iterator[None]:
    """Start a server, wait until it responds, and stop it at the end."""
    env = {**{k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}, **environment}
    with tempfile.TemporaryFile() as output:
        server = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT)
        try:
            for _ in range(600):
                if server.poll() is not None:
                    output.seek(0)
                    raise RuntimeError(output.read().decode())
                try:
                    if httpx2.get(url, timeout=2).status_code < 500:
                        break
                except httpx2.HTTPError:
                    time.sleep(0.05)
            yield
        finally:
            server.terminate()
            server.wait(60)


def api_keys(base: str) -> list[str]:
    """Create API keys of accounts with enough credit."""
    keys = []
    with httpx2.Client(base_url=base, timeout=30) as client:

        def post(path: str, body: dict[str, Any], token: str | None = None) -> Any:
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            answer = client.post(path, json=body, headers=headers)
            answer.raise_for_status()
            return answer.json()

        for number in range(ACCOUNTS):
            email = f"bench{number}@example.com"
            sent = post("/v2/control/auth/otp", {"email": email})
            proof = {"email": email, "otp_id": sent["otp_id"], "otp": sent["debug_otp"]}
            token = post("/v2/control/auth/verify", proof)["session"]["token"]
            keys.append(post("/v2/control/api-keys", {"name": "bench"}, token)["api_key"])
            post("/v2/control/sandbox/recharge", {"amount": "10000"}, token)
    return keys


def main() -> None:
    """Measure both and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    port, bare_port = free_port(), free_port()
    base = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        print(describe(Path(folder)))
        serve = [sys.executable, "-m", "holdfast", "serve"]
        settings = {
            "HOLDFAST_DATA_DIR": folder,
            "HOLDFAST_PORT": str(port),
            "HOLDFAST_TASKS_IN_FLIGHT_MAX": "1000000",
        }
        bare_command = [sys.executable, "-m", "benchmarks.bare", str(bare_port)]
        shape = {"connections": options.connections, "seconds": options.seconds}
        bare_request = load.post("/bare", BODY, {"Authorization": "Bearer hk_test_" + "0" * 38})
        with process(bare_command, f"http://127.0.0.1:{bare_port}/bare"):
            alone = [
                load.run(("127.0.0.1", bare_port), lambda _: bare_request, **shape).rate
                for _ in range(options.rounds + 1)
            ]
            bare_alone = statistics.median(alone[1:])
            print(f"bare, nothing beside it: median {bare_alone:,.0f}/s", flush=True)
        with (
            process(serve, f"{base}/readyz", **settings),
            process(bare_command, f"http://127.0.0.1:{bare_port}/bare"),
        ):
            keys = api_keys(base)
            requests = [load.post("/v2/task/create", BODY, {"Authorization": f"Bearer {key}"}) for key in keys]
            ratios, rates = [], []
            for number in range(options.rounds + 1):
                bare = load.run(("127.0.0.1", bare_port), lambda _: bare_request, **shape)
                create = load.run(("127.0.0.1", port), lambda n: requests[n % ACCOUNTS], **shape)
                assert set(create.statuses) == {200}, create.statuses
                ratio = create.rate / bare.rate
                note = " (warm-up)" if number == 0 else ""
                if number:
                    ratios.append(ratio)
                    rates.append(create.rate)
                print(
                    f"create {create.rate:,.0f}/s (p50 {create.percentile_ms(0.5):.1f} ms, "
                    f"p99 {create.percentile_ms(0.99):.1f} ms) | bare {bare.rate:,.0f}/s "
                    f"(p50 {bare.percentile_ms(0.5):.1f} ms) | ratio {ratio:.2f}{note}",
                    flush=True,
                )
            print(
                f"create over bare: median {statistics.median(ratios):.2f} of {len(ratios)} rounds beside the "
                f"working service, {statistics.median(rates) / bare_alone:.2f} of bare alone; "
                f"{options.connections} connections, {ACCOUNTS} accounts"
            )


if __name__ == "__main__":
    main()
