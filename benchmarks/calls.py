"""How many Python functions of the service a create calls, from its first byte in to its response's first byte out.

Calls of libraries and of Python's own modules are counted apart. The service runs in one process, and the thread of
its event loop is counted: a create on an account that is in memory, by itself, after others have warmed it up.

Run: python -m benchmarks.calls [--list]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType

import httpx2

import holdfast
from benchmarks.conditions import fresh_database, print_figures
from benchmarks.servers import BODY, api_keys, free_port, process, service_settings, silent_provider
from holdfast.commands.cli import main as holdfast_main
from holdfast.sockets.connected import ConnectedSocket

MARK = "x-count-calls"
RESULTS = "COUNTED_CALLS"
ROUNDS = 200
SOURCE = str(Path(holdfast.__file__).parent.parent) + "/"


def install() -> None:
    """Count the calls of each request that has the header, and append them to the file of results."""
    receive, send = ConnectedSocket.receive_some, ConnectedSocket.send_all
    calls, counted = Counter[str](), list[ConnectedSocket]()
    results = Path(os.environ[RESULTS]).open("a", buffering=1)  # noqa: SIM115

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls[f"{frame.f_code.co_filename}\t{frame.f_code.co_qualname}"] += 1

    async def receive_some(stream: ConnectedSocket, max_bytes: int | None = None) -> bytes:
        data = await receive(stream, max_bytes)
        if MARK.encode() in data.lower():
            calls.clear()
            counted[:] = [stream]
            sys.setprofile(count)
        return data

    async def send_all(stream: ConnectedSocket, data: bytes | bytearray | memoryview) -> None:
        if counted == [stream]:
            sys.setprofile(None)
            counted.clear()
            results.write(json.dumps(calls) + "\n")
        await send(stream, data)

    replaced = {"receive_some": receive_some, "send_all": send_all}
    for name, function in replaced.items():
        setattr(ConnectedSocket, name, function)


def count_creates(folder: Path, database_url: str) -> Counter[str]:
    """Return how often a create calls each function: the round with the fewest calls, of many."""
    port, results = free_port(), folder / "calls"
    with silent_provider() as provider_url:
        settings = service_settings(
            folder, database_url=database_url, port=port, provider_url=provider_url, slots=1
        )
        url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "benchmarks.calls", "serve"]
        with process(command, f"{url}/readyz", {**settings, RESULTS: str(results)}):
            [key] = api_keys(url, 1)
            headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            with httpx2.Client(base_url=url, timeout=30, trust_env=False) as client:
                for number in range(2 * ROUNDS):
                    marked = {**headers, MARK: "1"} if number >= ROUNDS else headers
                    client.post("/v2/task/create", content=BODY, headers=marked).raise_for_status()
    found = [Counter[str](json.loads(line)) for line in results.read_text().splitlines()]
    assert len(found) == ROUNDS
    return min(found, key=Counter.total)


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print each function with its calls")
    options = parser.parse_args()
    with fresh_database() as (url, _), tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        calls = count_creates(Path(name), url)
    own = {place: count for place, count in calls.items() if place.startswith(SOURCE)}
    files = {place.partition("\t")[0] for place in own}
    if options.list:
        for place, count in sorted(own.items()):
            print(f"{count:4} {place.removeprefix(SOURCE)}")
    print(f"a create: {sum(own.values())} calls in {len(files)} files of ours, {calls.total()} in all")
    print_figures({"calls": sum(own.values()), "files": len(files), "calls with libraries": calls.total()})


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        install()
        holdfast_main()
    else:
        main()
