"""The parent has no application code: a new release of the application needs no new parent."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading

import msgspec

from holdfast.start.children.worker import _exit_with_parent
from holdfast.start.parent.child_process import WorkerArguments

APPLICATION = {
    *("sqlalchemy", "alembic", "quart", "quart_trio", "hypercorn", "pykka", "httpx2", "stripe", "jsonschema_rs"),
    *("holdfast.actors", "holdfast.http", "holdfast.providers", "holdfast.wiring", "holdfast.start.service"),
    *("holdfast.ledger.catalog", "holdfast.ledger.credit", "holdfast.persistence.journal"),
}


def modules_after(statement: str) -> set[str]:
    program = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return set(json.loads(done.stdout))


def test_the_parent_imports_no_application_code() -> None:
    # As `holdfast serve` does it: the command line first.
    modules = modules_after("import holdfast.commands.cli, holdfast.start.parent.parent")
    assert "holdfast.start.parent.workers" in modules
    assert modules & APPLICATION == set()


UNUSED = {
    *("alembic", "cryptography", "fpdf", "obstore", "PIL", "pydantic", "pygments", "requests", "rich", "zxcvbn"),
    *("argparse", "smtplib"),
}
"""What no process of the service has before it is used."""


def test_the_service_imports_no_library_before_it_is_used() -> None:
    # As `holdfast serve` does it; the option is refused once it has been read.
    modules = modules_after(
        "import contextlib\n"
        "from holdfast.__main__ import main\n"
        "sys.argv[1:] = ['serve', '--processes', '-1']\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "import holdfast.start.service"
    )
    assert "holdfast.providers.card.base" in modules
    assert modules & UNUSED == set()


def test_a_worker_imports_no_library_before_it_is_used() -> None:
    modules = modules_after(
        "import socket, types\n"
        "import holdfast.start.children.worker as worker\n"
        "name, ends = 'holdfast.start.children.serving', socket.socketpair()\n"
        "sys.modules[name] = types.SimpleNamespace(serve=lambda *_: 0)\n"
        "arguments = {'slot': 0, 'metrics_dir': '', 'control_fd': ends[0].fileno(), 'public_fd': 0}\n"
        "worker.main(worker.WorkerArguments(**arguments))\n"
        "del sys.modules[name]\n"
        "__import__(name)"
    )
    assert "holdfast.providers.card.base" in modules
    assert modules & UNUSED == set()


def test_the_service_would_be_noticed() -> None:
    assert len(modules_after("import holdfast.start.children.serving") & APPLICATION) > len(APPLICATION) / 2


def test_a_worker_whose_parent_ends_while_it_loads_exits_at_once() -> None:
    ours, theirs = socket.socketpair()
    arguments = WorkerArguments(slot=0, metrics_dir="", control_fd=theirs.fileno(), public_fd=theirs.fileno())
    # The application is replaced by one that never finishes loading.
    program = (
        "import sys, time, types\n"
        "class Loading(types.ModuleType):\n"
        "    def __getattr__(self, name): print('loading', flush=True); time.sleep(600)\n"
        "sys.modules['holdfast.start.children.serving'] = Loading('serving')\n"
        "import msgspec\n"
        "from holdfast.start.children.worker import main\n"
        "from holdfast.start.parent.child_process import WorkerArguments\n"
        "main(msgspec.json.decode(sys.argv[1], type=WorkerArguments))\n"
    )
    with ours:
        worker = subprocess.Popen(
            [sys.executable, "-c", program, msgspec.json.encode(arguments).decode()],
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
        )
        theirs.close()
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"loading\n"
        assert worker.poll() is None
    worker.stdout.close()
    assert worker.wait(60) == 1


def test_a_worker_that_serves_may_be_suspended_and_continued() -> None:
    # The wait for the parent begins again then, on a socket that the event loop has made non-blocking.
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        _exit_with_parent(theirs.fileno(), threading.Event())
