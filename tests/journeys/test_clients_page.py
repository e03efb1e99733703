"""docs/clients.md says what the tests have tried, and its programs in JavaScript run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.tools import CLIENTS_NODE, needs

from .client_programs import run_node, run_python
from .client_table import client_table
from .conftest import NewCustomer
from .service_process import Service

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
ADDRESS = "http://127.0.0.1:8000"
_LINES = re.MULTILINE | re.DOTALL
PROGRAMS = re.findall(r"^```js\n(.*?)^```$", PAGE.read_text("utf-8"), _LINES)


def test_the_table_is_that_of_the_tests() -> None:
    shown = re.search(r"client_table.py -->\n(.*?)\n<!-- end", PAGE.read_text("utf-8"), re.DOTALL)
    assert shown is not None
    assert shown[1] == client_table()


@pytest.mark.slow
@needs(CLIENTS_NODE)
@pytest.mark.parametrize("program", PROGRAMS)
async def test_its_programs_in_javascript_run(
    shared_service: Service, new_customer: NewCustomer, program: str
) -> None:
    customer = await new_customer(shared_service, credit="5.00")
    started = program.replace(ADDRESS, shared_service.url)
    started = started.replace("process.env.HOLDFAST_API_KEY", json.dumps(customer.key))
    assert started.count(customer.key) == 1
    await run_node(f"{started}\nshow(null);", {})
    assert {task["status"] for task in (await customer.tasks()).values()} == {"succeeded"}


@pytest.mark.slow
@needs(CLIENTS_NODE)
async def test_its_program_for_replicate_in_python_runs(shared_service: Service, new_customer: NewCustomer) -> None:
    [program] = re.findall(
        r"^```python\n(import os\n\nimport replicate\n.*?)^```$", PAGE.read_text("utf-8"), _LINES
    )
    customer = await new_customer(shared_service, credit="5.00")
    started = program.replace(ADDRESS, shared_service.url)
    started = started.replace('os.environ["HOLDFAST_API_KEY"]', repr(customer.key))
    await run_python(f"{started}\nshow(None)", {})
    assert [task["status"] for task in (await customer.tasks()).values()] == ["succeeded"] * 2
