"""Images and containers of podman, without a registry of images and without systemd.

Everything is below the environment of the tests: images are built again only where something has changed, and what
else podman has on this machine is not touched. The base of all images is a Debian, made from its packages once.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.tools import path_of

ROOT: Final = Path(__file__).parent.parent
FOLDER: Final = Path(sys.prefix) / "containers"
BASE: Final = "localhost/holdfast-tests-base:trixie"
BASE_PACKAGES: Final = "python3,python3-venv,ca-certificates"
OPEN_FILES_MAX: Final = 20_000
PROCESSES_MAX: Final = 1_000
START_S: Final = 120.0
BUILD_S: Final = 1_200.0
OF_THIS_MACHINE: Final = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
"""How pip reaches a registry from here, which is no part of an image."""


class ContainerFault(Exception):
    """A command of podman failed; the message is what it printed."""


def podman(*words: str, check: bool = True, timeout_s: float = START_S) -> str:
    """Run a command of podman and return what it printed, without its warnings. Raises :class:`ContainerFault`.

    A container's errors are part of its log.
    """
    done = subprocess.run(
        [path_of("podman"), *words],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if words[0] == "logs" else subprocess.PIPE,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if check and done.returncode != 0:
        raise ContainerFault(f"podman {' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


@cache
def environment() -> dict[str, str]:
    """Return the variables with which podman works in the tests' folder, also below a program that calls it."""
    FOLDER.mkdir(exist_ok=True)
    files, processes = (
        limit if (hard := resource.getrlimit(kind)[1]) == resource.RLIM_INFINITY else min(limit, hard)
        for kind, limit in ((resource.RLIMIT_NOFILE, OPEN_FILES_MAX), (resource.RLIMIT_NPROC, PROCESSES_MAX))
    )
    limits = f'["nofile={files}:{files}", "nproc={processes}:{processes}"]'
    contents = {
        "containers.conf": f'[engine]\nruntime = "runc"\n[containers]\ndefault_ulimits = {limits}\n',
        "storage.conf": f'[storage]\ndriver = "overlay"\ngraphroot = "{FOLDER}/images"\nrunroot = "{FOLDER}/run"\n',
    }
    for name, content in contents.items():
        # As a whole: another process may read it now.
        draft = FOLDER / f"{name}.{os.getpid()}"
        draft.write_text(content)
        draft.replace(FOLDER / name)
    return {
        **os.environ,
        "CONTAINERS_CONF": str(FOLDER / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(FOLDER / "storage.conf"),
    }


def build_image(tag: str, checkout: Path = ROOT, **arguments: str) -> str:
    """Build the service's image from a checkout, with these arguments of its Containerfile; its name."""
    with alone():
        make_debian(BASE, BASE_PACKAGES)
        name = f"localhost/holdfast:{tag}"
        mounted = [f"--volume={file}:{file}:ro" for file in OF_THIS_MACHINE if Path(file).exists()]
        given = [f"--build-arg={name}={value}" for name, value in {"BASE": BASE, **arguments}.items()]
        options = ("--isolation=chroot", "--network=host", "--format=docker", "--pull-never")
        file = checkout / "deploy" / "Containerfile"
        podman(
            "build", *options, *mounted, *given, f"--file={file}", f"--tag={name}", str(checkout), timeout_s=BUILD_S
        )
        return name


def copy_sources(tree: Path) -> None:
    """Copy what this checkout's wheels and image are built from into a new folder."""
    for name in ("src", ".ci", "requirements", "deploy"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore", ".containerignore"):
        shutil.copyfile(ROOT / name, tree / name)


def make_debian(name: str, packages: str, *words: str, options: Sequence[str] = ()) -> None:
    """Make an image of a Debian with these packages, unless there is one. ``options`` are those of podman's import.

    ``words`` are further options of mmdebstrap.
    """
    if podman("images", "--quiet", name):
        return
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        root = Path(folder) / "base.tar"
        suite = name.rpartition(":")[2]
        made = [
            path_of("mmdebstrap"),
            "--quiet",
            "--variant=minbase",
            f"--include={packages}",
            *words,
            suite,
            str(root),
        ]
        subprocess.run(made, stdin=subprocess.DEVNULL, timeout=BUILD_S, check=True)
        podman("import", "--quiet", *options, str(root), name, timeout_s=BUILD_S)


@contextmanager
def alone() -> Iterator[None]:
    """Wait until no other process builds."""
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class Container:
    """A container of this name."""

    name: str

    def inspect(self) -> dict[str, Any]:
        """Return what podman knows of it."""
        [found] = json.loads(podman("inspect", self.name))
        assert isinstance(found, dict)
        return found

    def log_lines(self) -> list[dict[str, Any]]:
        """Return the lines of its log that are JSON."""
        lines = podman("logs", self.name).splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def run(self, *words: str) -> str:
        """Run a command in it and return what that prints. Raises :class:`ContainerFault`."""
        return podman("exec", self.name, *words)

    def await_healthy(self) -> None:
        """Run its health check until it succeeds; without systemd nothing else runs it."""
        deadline = time.monotonic() + START_S
        while self.health() != "healthy":
            assert time.monotonic() < deadline, podman("logs", self.name)
            time.sleep(0.5)

    def health(self) -> str:
        """Run its health check once and return its health."""
        podman("healthcheck", "run", self.name, check=False)
        return str(self.inspect()["State"]["Health"]["Status"])

    def exit_code(self) -> int:
        """Wait for its end and return its exit code."""
        return int(podman("wait", self.name))
