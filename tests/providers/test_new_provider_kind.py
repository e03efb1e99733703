"""The provider kind that CONTRIBUTING.md adds as an example: its file and one registration are enough to use it."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.ledger.catalog.catalog import CatalogFault
from holdfast.providers.media.base import Accepted, Job, MediaProvider
from holdfast.providers.media.kinds import PROVIDER_KINDS
from holdfast.providers.storage.sniffing import sniff
from holdfast.settings.settings import load_settings
from holdfast.wiring.provider_registry import ProviderRegistry

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"


def example(language: str) -> str:
    """The module or the catalog in CONTRIBUTING.md."""
    section = CONTRIBUTING.read_text(encoding="utf-8").partition("## Adding a provider kind")[2]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


CATALOG = example("toml")


@pytest.fixture
def colour() -> ModuleType:
    """The module, loaded."""
    module = ModuleType("colour")
    exec(compile(example("python"), "colour.py", "exec"), module.__dict__)
    return module


def open_registry(folder: Path, catalog: str = CATALOG) -> ProviderRegistry:
    file = folder / "catalog.toml"
    file.write_text(catalog)
    values = {"HOLDFAST_CATALOG": str(file), "HOLDFAST_DATA_DIR": str(folder)}
    return ProviderRegistry(load_settings(values))


async def test_a_registered_kind_runs_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, colour: ModuleType
) -> None:
    monkeypatch.setitem(PROVIDER_KINDS, "colour", colour.COLOUR)
    registry = open_registry(tmp_path)
    provider: MediaProvider = registry.providers["painter"]
    assert registry.slots() == {"painter": 4}
    submission = await provider.submit(Job("task_1", 1, "m", {"prompt": "hello"}, "http://here/callback"))
    assert isinstance(submission, Accepted)
    update = await provider.poll("task_1", 1, submission.provider_ref)
    assert update is not None
    (output,) = update.outputs
    assert output.data is not None
    # Hosting takes it: its bytes are of a type that is hosted.
    assert (update.status, sniff(base64.b64decode(output.data))) == ("succeeded", output.content_type)
    assert await provider.cancel("task_1", 1, submission.provider_ref) == "confirmed"
    assert await provider.poll("task_2", 1, None) is None


@pytest.mark.parametrize("check", [("check",), ("format", "--check")])
def test_the_module_is_in_the_style_of_the_project(check: tuple[str, ...]) -> None:
    name = "src/holdfast/providers/media/colour.py"
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *check, "--stdin-filename", name, "-"],
        cwd=CONTRIBUTING.parent,
        input=example("python"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_unregistered_kind_is_a_fault_of_the_catalog(tmp_path: Path) -> None:
    with pytest.raises(CatalogFault, match="kind must be one of studio, cog, replicate, not 'colour'"):
        open_registry(tmp_path)


def test_the_rules_of_a_kind_hold_for_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, colour: ModuleType
) -> None:
    monkeypatch.setitem(PROVIDER_KINDS, "colour", colour.COLOUR)
    for old, new, fault in (
        ("url = ", "polls = true\nurl = ", "polls is not a known key of kind colour"),
        ('url = "http://painter.internal:5000"', "", "url is missing"),
    ):
        with pytest.raises(CatalogFault, match=fault):
            open_registry(tmp_path, CATALOG.replace(old, new))
