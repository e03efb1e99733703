"""The demonstration's service: a process with its own data folder and ports."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from holdfast.settings.settings import PREFIX, environment

START_S: Final = 60.0
STOP_S: Final = 40.0
AUDIT_S: Final = 120.0
TAIL_LINES: Final = 40


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
