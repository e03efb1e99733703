"""The baseline of the HTTP benchmark: one empty POST endpoint on unmodified quart-trio and hypercorn.

It reads the body as JSON and answers one of the size a created task has.
"""

from __future__ import annotations

import sys

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from quart import request
from quart_trio import QuartTrio

app = QuartTrio(__name__)
ANSWER: dict[str, object] = {
    "request_id": "task_" + "0" * 32,
    "quote_id": "quo_" + "0" * 32,
    "status": "queued",
    "retry_of": None,
    "estimated_cost": {"credits": "0.012", "basis": "per_image: 1 x 0.012"},
    "urls": dict.fromkeys(("get", "cancel", "retry"), "http://127.0.0.1:8000/v2/task/task_" + "0" * 32),
}


@app.post("/bare")
async def bare() -> dict[str, object]:
    """Respond at once."""
    await request.get_json()
    return ANSWER


async def main(port: int) -> None:
    """Serve until killed."""
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.accesslog = None
    config.errorlog = None
    await serve(app, config)


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]))
