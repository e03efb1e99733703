"""Which asset store the service uses."""

from __future__ import annotations

import hashlib
import stat
import sys
from pathlib import Path

import pytest
import trio

from holdfast.providers.storage.local import LocalStore
from holdfast.providers.storage.s3 import S3Store
from holdfast.settings.settings import Settings, SettingsFault, load_settings
from holdfast.wiring.parts import asset_store

BUCKET = {
    "HOLDFAST_ASSET_STORE": "s3",
    "HOLDFAST_S3_BUCKET": "results",
    "HOLDFAST_S3_ACCESS_KEY_ID": "key",
    "HOLDFAST_S3_SECRET_ACCESS_KEY": "secret",
}


def settings_of(folder: Path, **environ: str) -> Settings:
    return load_settings({"HOLDFAST_DATA_DIR": str(folder), **environ})


def test_results_are_stored_in_a_folder_by_default(tmp_path: Path) -> None:
    assert isinstance(asset_store(settings_of(tmp_path)), LocalStore)
    assert isinstance(asset_store(settings_of(tmp_path, **BUCKET)), S3Store)


def test_s3_without_its_library_is_a_settings_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "holdfast.providers.storage.s3")
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(SettingsFault) as caught:
        asset_store(settings_of(tmp_path, **BUCKET))
    (line,) = caught.value.lines
    assert line.startswith("HOLDFAST_ASSET_STORE: ")
    assert "run pip install 'obstore<0.13,>=0.12', or" in line


def test_folders_of_results_are_private(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    trio.run(store.prepare)
    store.put(b"result", hashlib.sha256(b"result").hexdigest(), "txt")
    folders = [path for path in tmp_path.rglob("*") if path.is_dir()]
    assert len(folders) >= 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}
