"""The parent has no application code: a new release of the application needs no new parent."""

from __future__ import annotations

import json
import subprocess
import sys

APPLICATION = {
    *("sqlalchemy", "alembic", "quart", "quart_trio", "hypercorn", "pykka", "httpx2", "stripe", "jsonschema_rs"),
    *("holdfast.actors", "holdfast.http", "holdfast.providers", "holdfast.wiring", "holdfast.service"),
    *("holdfast.ledger.catalog", "holdfast.ledger.credit", "holdfast.persistence.journal"),
}


def modules_after(statement: str) -> set[str]:
    program = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return set(json.loads(done.stdout))


def test_the_parent_imports_no_application_code() -> None:
    # As `holdfast serve` does it: the command line first.
    modules = modules_after("import holdfast.cli, holdfast.parent.parent")
    assert "holdfast.parent.workers" in modules
    assert modules & APPLICATION == set()


def test_the_service_would_be_noticed() -> None:
    assert len(modules_after("import holdfast.children.worker") & APPLICATION) > len(APPLICATION) / 2
