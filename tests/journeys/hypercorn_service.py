"""The service with hypercorn as its HTTP server. :data:`PROGRAM` runs it."""

from __future__ import annotations

import os
from functools import partial
from typing import cast

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from hypercorn.typing import Framework

from holdfast.http.app import SERVED, HoldfastApp
from holdfast.supervision.spec import ChildSpec, Intensity
from holdfast.supervision.supervisor import Supervisor
from holdfast.supervision.tree import RunningChild
from holdfast.wiring.http_server import HttpServer

PROGRAM = """
import sys
from holdfast.wiring import assembly
from tests.journeys.hypercorn_service import HypercornServer
assembly.HttpServer = HypercornServer
from holdfast.__main__ import main
sys.argv = ["holdfast", "serve"]
main()
"""
STOP_S = 10.0
"""Longer than hypercorn gives to requests at a stop."""


class HypercornServer(HttpServer):
    """Serves the application by hypercorn, as it comes."""

    def start(self) -> Supervisor:
        """Return an incarnation."""
        app = HoldfastApp(self._deps, SERVED)
        return Supervisor(
            "http",
            [
                ChildSpec(
                    "refused-requests", lambda: RunningChild(self._deps.operating.refused.run), shutdown_s=1.0
                ),
                ChildSpec("hypercorn", partial(self._hypercorn, app), shutdown_s=STOP_S),
            ],
            strategy="one_for_one",
            intensity=Intensity(0, 60.0),
            reporter=self._reporter,
            conditions=self._deps.conditions,
        )

    def _hypercorn(self, app: HoldfastApp) -> RunningChild:
        config, stop = Config(), trio.Event()
        config.bind = [f"fd://{os.dup(self._own.public.fileno())}"]

        async def request_stop() -> None:
            stop.set()

        return RunningChild(partial(serve, cast(Framework, app), config, shutdown_trigger=stop.wait), request_stop)
