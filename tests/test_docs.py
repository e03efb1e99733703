"""The documentation is correct: its code runs on a real service, its lists are complete, its links exist."""

from __future__ import annotations

import ast
import gc
import os
import re
import shutil
import subprocess
import tempfile
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args
from unittest import mock

import httpx2
import msgspec
import pytest
from PIL import Image

from holdfast.ledger.catalog.bonuses import BonusTable
from holdfast.ledger.catalog.catalog import load_catalog
from holdfast.ledger.catalog.metering import UnitFields
from holdfast.ledger.catalog.models import (
    CatalogTable,
    ChargeTable,
    HostingTable,
    ModelTable,
    Pricing,
    ProviderConfig,
    Tier,
    Upstream,
)
from holdfast.ledger.catalog.terms import Deadlines
from holdfast.ledger.cells import parse_cells
from holdfast.providers.media.kinds import kind_rules
from holdfast.settings.settings import Settings
from holdfast.telemetry.reports.report import REPORT_KINDS

from .journeys.service_process import Service
from .tools import needs

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
ADDRESS = "http://127.0.0.1:8000"
"""Where the documentation says that the service is."""
CARD_EMULATOR = "http://127.0.0.1:27311"
"""Where it says that the card emulator is."""
GO_ON = {"api.md"}
"""The pages whose sessions go on from the README's."""

_BLOCK = re.compile(
    r"(?P<excuse><!-- not run by the tests: [^>]+ -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")


class Block(NamedTuple):
    """A fenced block of code."""

    language: str
    code: str
    is_excused: bool


def blocks_of(page: Path) -> list[Block]:
    """The page's blocks, in order."""
    found = _BLOCK.finditer(page.read_text("utf-8"))
    return [Block(match["language"], match["code"], match["excuse"] is not None) for match in found]


def script_of(page: Path, language: str) -> str:
    """All that the page would have its reader run, in one piece."""
    return "\n".join(b.code for b in blocks_of(page) if b.language == language and not b.is_excused)


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """One service for all pages."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-docs-"))
    folder.chmod(0o711)
    service = Service(folder)
    try:
        service.start()
        yield service
        assert service.stop() == 0
    finally:
        if service.is_alive():
            service.kill()
        shutil.rmtree(folder)


@needs("curl")
@pytest.mark.parametrize("page", [p for p in PAGES if script_of(p, "sh")], ids=named)
@pytest.mark.slow
def test_shell_sessions_run_as_they_are_written(page: Path, service: Service, tmp_path: Path) -> None:
    script = script_of(page, "sh")
    if page.name in GO_ON:
        # As someone else: a code is not sent to an address twice within half a minute.
        script = script_of(ROOT / "README.md", "sh").replace("ada@", "grace@") + script
        script = script.replace(CARD_EMULATOR, f"http://127.0.0.1:{(service.data_dir / 'card.port').read_text()}")
    done = subprocess.run(
        ["sh", "-eu", "-c", script.replace(ADDRESS, service.url)],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if page.name == "api.md":
        assert '"last4":"4242"' in done.stdout
        assert '"enabled":true,"status":"on"' in done.stdout
    if page.name == "README.md":
        with Image.open(tmp_path / "lighthouse.png") as image:
            image.load()
            assert image.size == (768, 512)
        assert '"held_total":"0.00"' in done.stdout
        assert '"status":"succeeded"' in done.stdout


@needs("curl")
def test_the_first_session_shows_a_refusal_and_ends(service: Service, tmp_path: Path) -> None:
    """A refused step (here: an address that is none) prints the response, and nothing waits for its outcome."""
    script = script_of(ROOT / "README.md", "sh").replace(ADDRESS, service.url).replace("ada@example.com", "ada")
    for options in ([], ["-eu"]):
        done = subprocess.run(
            ["sh", *options, "-c", script],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode != 0
        assert '"code":"invalid_' in done.stderr
        assert not (tmp_path / "lighthouse.png").exists()


# The modules that CONTRIBUTING.md adds are installed and used by test_new_endpoint and test_new_provider_kind.
@pytest.mark.parametrize(
    "page", [p for p in PAGES if script_of(p, "python") and p.name != "CONTRIBUTING.md"], ids=named
)
def test_python_runs_as_it_is_written(page: Path, service: Service) -> None:
    code = compile(script_of(page, "python").replace(ADDRESS, service.url), str(page), "exec")
    names: dict[str, Any] = {"__name__": "documentation"}
    with mock.patch.dict(os.environ):
        exec(code, names)
    # Programs that end leave their clients open; here they must not warn in a later test.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        names.clear()
        gc.collect()


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if script_of(p, "toml") and p.name not in ("CONTRIBUTING.md", "catalog.md", "scaling.md")],
    ids=named,
)
def test_catalog_tables_can_be_added_to_the_shipped_catalog(page: Path, tmp_path: Path) -> None:
    shipped = ROOT / "src" / "holdfast" / "ledger" / "catalog" / "default_catalog"
    shutil.copytree(shipped, tmp_path / "catalog")
    with (tmp_path / "catalog" / "catalog.toml").open("a") as file:
        file.write(script_of(page, "toml"))
    known = load_catalog(None, kind_rules()).models
    assert load_catalog(tmp_path / "catalog" / "catalog.toml", kind_rules()).models.keys() > known.keys()


def test_the_list_of_cells_can_be_read() -> None:
    found = re.findall(r"^```toml\n(.*?)^```", (ROOT / "docs" / "scaling.md").read_text(), re.DOTALL | re.MULTILINE)
    assert [[cell.number for cell in parse_cells(each)] for each in found] == [[1, 2], [1, 2]]


CATALOG_TABLES: dict[str, type[msgspec.Struct]] = {
    "[catalog]": CatalogTable,
    "[providers.NAME]": ProviderConfig,
    "[[models]]": ModelTable,
    "upstream": Upstream,
    "pricing": Pricing,
    "tiers": Tier,
    "units": UnitFields,
    "hosting": HostingTable,
    "deadlines": Deadlines,
    "charge": ChargeTable,
    "[[bonus]]": BonusTable,
}


def keys_of(table: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    """The keys of a table of the catalog; a provider's name is in the table's head."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(table)}
    return {key: field for key, field in fields.items() if (table, key) != (ProviderConfig, "name")}


def structs_in(table: type[msgspec.Struct]) -> set[type[msgspec.Struct]]:
    """The table's own type and those of the tables in it."""
    found = {table}
    for key in keys_of(table).values():
        parts = (key.type, *get_args(key.type))
        for part in parts:
            if isinstance(part, type) and issubclass(part, msgspec.Struct):
                found |= structs_in(part)
    return found


def test_every_key_of_the_catalog_is_documented() -> None:
    tops = (CatalogTable, ProviderConfig, ModelTable, BonusTable)
    assert set(CATALOG_TABLES.values()) == {struct for top in tops for struct in structs_in(top)}
    page = (ROOT / "docs" / "catalog.md").read_text("utf-8")
    sections = dict(re.findall(r"^## `(.+?)`\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert sections.keys() == CATALOG_TABLES.keys()
    for name, table in CATALOG_TABLES.items():
        rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", sections[name].split("| Mode |")[0], re.MULTILINE)
        keys = keys_of(table)
        assert sorted(key for key, _, _ in rows) == sorted(keys), name
        for key, default, _ in rows:
            # A default in code font is the struct's own; others are described.
            if default.startswith("`"):
                said, own = tomllib.loads(f"value = {default.strip('`')}")["value"], keys[key].default
                has_tables = isinstance(own, msgspec.Struct)
                assert said == ({} if has_tables else msgspec.json.decode(msgspec.json.encode(own))), (name, key)
            elif default in ("required", "none"):
                assert keys[key].required is (default == "required"), (name, key)


def test_the_documented_catalog_is_valid_and_sets_every_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = script_of(ROOT / "docs" / "catalog.md", "toml")
    for name in ("box.secret", "box-of-last-year.secret", "box.token"):
        (tmp_path / name).write_text("a-secret-in-a-file\n")
    for name in ("HOSTED_TOKEN", "HOSTED_SECRET", "HOSTED_SECRET_BEFORE"):
        monkeypatch.setenv(name, "whsec_YS1zZWNyZXQtaW4tYS12YXJpYWJsZQ==")
    (tmp_path / "catalog.toml").write_text(script)
    catalog = load_catalog(tmp_path / "catalog.toml", kind_rules(), os.environ)
    assert catalog.examples.keys() == {"box/poster-2"}
    given = tomllib.loads(script)
    models = [given["defaults"], *given["models"]]
    prices = [model["pricing"] for model in models if "pricing" in model]
    used: dict[str, list[dict[str, object]]] = {
        "[catalog]": [given["catalog"]],
        "[providers.NAME]": list(given["providers"].values()),
        "[[models]]": models,
        "pricing": prices,
        "[[bonus]]": given["bonus"],
        "tiers": [tier for price in prices for tier in price.get("tiers", ())],
    }
    for name, table in CATALOG_TABLES.items():
        tables = used.get(name) or [model[name] for model in models if name in model]
        assert keys_of(table).keys() - {key for each in tables for key in each} == set(), name


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_exist(page: Path) -> None:
    broken = [link for link in _LINK.findall(page.read_text("utf-8")) if not (page.parent / link).exists()]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_tables_begin_with_a_head(page: Path) -> None:
    """A row after an empty line would be shown as text."""
    lines = ["", *page.read_text("utf-8").splitlines(), ""]
    firsts = [n for n, line in enumerate(lines) if line.startswith("|") and not lines[n - 1].startswith("|")]
    assert [lines[n] for n in firsts if not lines[n + 1].startswith("|---")] == []


def test_every_setting_is_documented() -> None:
    read = {field.encode_name for field in msgspec.structs.fields(Settings)}
    page = (ROOT / "docs" / "settings.md").read_text("utf-8")
    cells = re.findall(r"^\| (`[A-Z0-9_`, ]+) \|", page, re.MULTILINE)
    documented = {name for cell in cells for name in re.findall(r"`([A-Z0-9_]+)`", cell)}
    assert "S3_BUCKET" in documented
    assert documented == read


def test_the_runbook_names_log_events_that_exist() -> None:
    names = ("catalog.md", "operating.md", "monitoring.md", "providers.md", "runbook.md")
    pages = ((ROOT / "docs" / name).read_text("utf-8") for name in names)
    page = " ".join(" ".join(pages).split())
    named_events = set(re.findall(r"`(?!make |holdfast )([a-z][a-z']*(?: [A-Za-z_']+)+)`", page))
    patterns = _log_events()
    assert len(named_events) > 10
    assert [event for event in named_events if not any(re.fullmatch(each, event) for each in patterns)] == []


def test_the_runbook_has_a_section_for_each_report_and_alert() -> None:
    page = (ROOT / "docs" / "runbook.md").read_text("utf-8")
    rules = (ROOT / "deploy" / "prometheus" / "holdfast.rules.yml").read_text("utf-8")
    alerts = re.findall(r"- alert: (\w+)$", rules, re.MULTILINE)
    links = re.findall(r"runbook_url: .*docs/runbook\.md.*#(\w+)'$", rules, re.MULTILINE)
    sections = re.findall(r"^### (\w+)$", page, re.MULTILINE)
    assert sorted(sections) == sorted({*REPORT_KINDS, *alerts})
    assert links == [alert.lower() for alert in alerts]


def test_links_to_sections_exist() -> None:
    for page in PAGES:
        for target, anchor in re.findall(r"\]\((?!https?://)([^)#]*)#([\w-]+)\)", page.read_text("utf-8")):
            linked = page.parent / target if target else page
            headings = re.findall(r"^#+ (.+)$", linked.read_text("utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
            assert anchor in anchors, f"{named(page)}: {target}#{anchor}"


def test_the_drawn_tree_is_that_of_a_running_service(service: Service) -> None:
    """With an operators' port, which the service of these tests does not have."""
    token = (service.data_dir / "secrets" / "operator_token").read_text().strip()
    answer = httpx2.get(f"{service.url}/ops/api/tree", headers={"Authorization": f"Bearer {token}"})
    [member] = answer.raise_for_status().json()["members"]
    tree = member["process"]["tree"]
    tree["children"][-1]["children"].append({"child_id": "operators-listener", "children": []})
    blocks = blocks_of(ROOT / "docs" / "architecture.md")
    block = next(each.code for each in blocks if each.code.startswith("holdfast ") and "├" in each.code)
    drawn = [re.match(r"[│├└─ ]*[\w-]+", line) for line in block.splitlines()]
    assert [line and line[0] for line in drawn] == [tree["child_id"], *drawing_of(tree["children"])]


def drawing_of(children: list[dict[str, Any]], indent: str = "") -> list[str]:
    """Draw children and what is below them, down to the tree's workers."""
    lines: list[str] = []
    for child in children:
        is_last = child is children[-1]
        lines.append(f"{indent}{'└── ' if is_last else '├── '}{child['child_id']}")
        lines += drawing_of(child["children"], indent + ("    " if is_last else "│   "))
    return lines


def _log_events() -> set[str]:
    """Return a pattern for each message that src logs; a formatted part matches anything."""
    levels = {"debug", "info", "warning", "error", "critical", "exception"}
    messages: list[ast.expr] = []
    for path in (ROOT / "src").rglob("*.py"):
        source = path.read_text("utf-8")
        nodes = list(ast.walk(ast.parse(source)))
        for node in nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in levels:
                messages += node.args[:1]
        if "LogEvent" in source:
            # Log events of tasks and orders are values, which an actor logs when they are durable.
            messages += [node for node in nodes if isinstance(node, ast.Constant | ast.JoinedStr)]
    patterns = set()
    for message in messages:
        parts = message.values if isinstance(message, ast.JoinedStr) else [message]
        texts = [re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+" for part in parts]
        patterns.add("".join(texts))
    return patterns - {".+"}


def test_the_readme_shows_the_rows_that_the_demo_prints() -> None:
    shown = re.findall(r"^│ (.+?) +│", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    source = (ROOT / "src" / "holdfast_emulators" / "demo.py").read_text("utf-8")
    assert len(shown) == 7
    assert [row for row in shown if f'"{row}"' not in source] == []


def test_every_make_target_is_documented() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    described = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    assert set(phony[1].split()) == described
