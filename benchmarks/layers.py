"""Creates by the layers for other services' clients, beside native creates that store their replies as these do.

The service takes its load in turn as OpenAI's clients send it, as Replicate's clients in JavaScript do, and as a
native client with an Idempotency-Key for each create. The provider never responds and no request waits for its
task, so that only creates are measured. CPU is user and system time without PostgreSQL.

Run: python -m benchmarks.layers [--seconds 4] [--connections 32] [--accounts 200] [--rounds 5]
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Callable, Iterator, Mapping

from benchmarks import load
from benchmarks.conditions import print_figures
from benchmarks.servers import Service, api_keys, cpu_s, one_service, silent_provider

CLIP = """
[[models]]
id = "gpu/clip-1"
created = "2026-11-01"
modality = "video"
type = "async"
owned_by = "gpu"
pricing = { mode = "per_request", unit_price = "0.012" }
units = {}
upstream = { provider = "gpu", model = "instant" }
input_schema = "prompt.json"
deadlines = { dispatch_s = 3600 }
"""
PROMPT = "a lighthouse at dusk"

Create = Callable[[str, int], bytes]
"""Returns the nth request to create a task, with an account's key."""


def native(key: str, number: int) -> bytes:
    """A create with an Idempotency-Key."""
    body = {"model": "gpu/clip-1", "input": {"prompt": PROMPT}}
    return request("/v2/task/create", body, key, {"Idempotency-Key": f"create-{number}"})


def openai(key: str, _: int) -> bytes:
    """A video, as OpenAI's clients create it."""
    return request("/v1/videos", {"model": "gpu/clip-1", "prompt": PROMPT}, key, {"X-Stainless-Retry-Count": "0"})


def replicate(key: str, _: int) -> bytes:
    """A prediction, as Replicate's clients in JavaScript create it."""
    path = "/replicate/v1/models/gpu/clip-1/predictions"
    return request(path, {"input": {"prompt": PROMPT}}, key, {"User-Agent": "replicate-javascript/1.4.0"})


LAYERS: dict[str, Create] = {"OpenAI's clients": openai, "Replicate's clients": replicate}


def request(path: str, body: Mapping[str, object], key: str, headers: dict[str, str]) -> bytes:
    """Render a request."""
    return load.post(path, json.dumps(body).encode(), {"Authorization": f"Bearer {key}", **headers})


def cpu_us(service: Service, requests: Iterator[bytes], *, connections: int, seconds: float) -> float:
    """Create tasks for a while, and return the CPU of each in microseconds."""
    before = cpu_s(service.process)
    done = load.run([service.port], lambda *_: next(requests), connections=connections, seconds=seconds)
    assert set(done.statuses) <= {200, 201}, done.statuses
    return (cpu_s(service.process) - before) / len(done.latencies_s) * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--accounts", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with silent_provider() as provider_url, one_service(options, provider_url, models=CLIP) as service:
        keys = api_keys(service.base, options.accounts)
        sides = {"native": native, **LAYERS}
        requests = {
            title: (create(keys[number % len(keys)], number) for number in itertools.count())
            for title, create in sides.items()
        }
        runs: list[dict[str, float]] = []
        for number in range(options.rounds + 1):
            found = {
                title: cpu_us(service, each, connections=options.connections, seconds=options.seconds)
                for title, each in requests.items()
            }
            shown = ", ".join(f"{title} {us:,.0f} us" for title, us in found.items())
            print(f"CPU a create: {shown}" + (" (warm-up)" if number == 0 else ""), flush=True)
            runs += [found] if number else []
    for title in LAYERS:
        ratio = statistics.median(found[title] / found["native"] for found in runs)
        print(f"{title}: {ratio:.3f} x the CPU of a native create (median of {options.rounds} rounds)")
        print_figures({f"{title}, CPU": ratio})


if __name__ == "__main__":
    main()
