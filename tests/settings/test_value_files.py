"""The value of a setting may be in a file that ``…_FILE`` names."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from holdfast.settings.settings import (
    SettingsFault,
    load_locations,
    load_service_location,
    load_settings,
    override,
    use_env_file,
)

DATABASE_URL = "postgresql://holdfast:p@db.example.com/holdfast"
STRONG = {
    "OPERATOR_TOKEN": "op-Zq3vN8xKfT2mWc7RbY5hJd9LsA4eGuPi",
    "CALLBACK_SECRET": "cb-Hy6tRw1QnMz8bVx3KdFj5sLp2GcEa9Uo",
    "SANDBOX_SECRET": "sb-Lk4jHg7fDs2aPo9iUy5tRe3wQz8xCv6B",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "value"


@pytest.fixture
def development(tmp_path: Path) -> dict[str, str]:
    return {"HOLDFAST_DATA_DIR": str(tmp_path / "var")}


def faults(load: Callable[[dict[str, str]], object], environ: dict[str, str]) -> tuple[str, ...]:
    with pytest.raises(SettingsFault) as caught:
        load(environ)
    return caught.value.lines


@pytest.mark.parametrize("content", [DATABASE_URL, f"{DATABASE_URL}\n", f"  {DATABASE_URL} \r\n\n"])
def test_every_way_of_reading_settings_takes_a_file(file: Path, development: dict[str, str], content: str) -> None:
    file.write_text(content)
    given = {**development, "HOLDFAST_DATABASE_URL_FILE": str(file)}
    for load in (load_settings, load_locations, load_service_location):
        assert load(given).database_url == DATABASE_URL


def test_production_takes_its_secrets_from_files(tmp_path: Path) -> None:
    (tmp_path / "catalog.toml").touch()
    given = {"ENV": "production", "CATALOG": str(tmp_path / "catalog.toml"), "PORT": "1234"}
    for name, value in {**STRONG, "DATABASE_URL": DATABASE_URL, "PORT": "1234"}.items():
        (tmp_path / name).write_text(value)
        given[f"{name}_FILE"] = str(tmp_path / name)
    del given["PORT"]
    settings = load_settings({f"HOLDFAST_{name}": value for name, value in given.items()})
    assert settings.operator_token == STRONG["OPERATOR_TOKEN"]
    assert settings.port == 1234
    # A secret is checked, and removed from logs, wherever it came from.
    assert {*STRONG.values(), "p"} <= set(settings.secret_values())
    (tmp_path / "OPERATOR_TOKEN").write_text("password")
    lines = faults(load_settings, {f"HOLDFAST_{name}": value for name, value in given.items()})
    assert lines == ("HOLDFAST_OPERATOR_TOKEN is too weak; give at least 32 random characters",)


def test_a_file_that_has_no_value_is_one_line(file: Path, tmp_path: Path) -> None:
    """Also in production, which needs the value: it is not said to be missing as well."""
    (tmp_path / "catalog.toml").touch()
    given = {
        "HOLDFAST_ENV": "production",
        "HOLDFAST_CATALOG": str(tmp_path / "catalog.toml"),
        "HOLDFAST_DATABASE_URL": DATABASE_URL,
        **{f"HOLDFAST_{name}": value for name, value in STRONG.items()},
    }
    del given["HOLDFAST_SANDBOX_SECRET"]
    given["HOLDFAST_SANDBOX_SECRET_FILE"] = str(file)
    name = "HOLDFAST_SANDBOX_SECRET_FILE"
    assert faults(load_settings, given) == (f"{name} must be the name of a file that exists",)
    contents = {
        b"": f"{name} names {file}, which is empty",
        b" \n": f"{name} names {file}, which is empty",
        b"a\xff": f"{name} names {file}, which is not UTF-8",
        b"a" * 65_537: f"{name} names {file}, which has more than 65536 bytes",
        b"a" + "é".encode() * 40_000: f"{name} names {file}, which has more than 65536 bytes",
        "é".encode() * 40_000: f"{name} names {file}, which has more than 65536 bytes",
        b"a\0b": f"{name} names {file}, which has a NUL character",
    }
    for content, line in contents.items():
        file.write_bytes(content)
        assert faults(load_settings, given) == (line,)
    file.unlink()
    file.mkdir()
    assert faults(load_settings, given) == (f"{name} must be the name of a file that exists",)


def test_a_file_that_cannot_be_read_is_one_line(
    file: Path, development: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("a-secret")

    def refuse(*_given: Any, **_options: Any) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", refuse)
    lines = faults(load_settings, {**development, "HOLDFAST_OPERATOR_TOKEN_FILE": str(file)})
    assert lines == (f"HOLDFAST_OPERATOR_TOKEN_FILE names {file}, which cannot be read: Permission denied",)


def test_a_value_and_a_file_are_refused(file: Path, development: dict[str, str]) -> None:
    file.write_text("9000")
    given = {**development, "HOLDFAST_PORT": "8000", "HOLDFAST_PORT_FILE": str(file)}
    lines = ("HOLDFAST_PORT_FILE is set, and so is HOLDFAST_PORT; remove one of them",)
    assert faults(load_settings, given) == faults(load_service_location, given) == lines
    assert load_settings({**given, "HOLDFAST_PORT": " "}).port == 9000
    assert load_settings({**given, "HOLDFAST_PORT_FILE": ""}).port == 8000


def test_an_invalid_value_in_a_file_is_a_fault_of_the_setting(file: Path, development: dict[str, str]) -> None:
    file.write_text("a\n")
    lines = faults(load_settings, {**development, "HOLDFAST_PORT_FILE": str(file)})
    assert lines == ("HOLDFAST_PORT must be an integer from 0 to 65535, not 'a'",)


@pytest.mark.parametrize("name", ["CATALOG", "DATA_DIR", "MEMBER_CERTIFICATE", "MEMBER_KEY", "MEMBER_CA"])
def test_what_names_a_file_itself_is_in_no_other(file: Path, tmp_path: Path, name: str) -> None:
    file.write_text("a")
    lines = faults(load_settings, {f"HOLDFAST_{name}_FILE": str(file)})
    assert lines == (f"HOLDFAST_{name}_FILE is not a setting; did you mean HOLDFAST_{name}?",)


def test_an_overridden_setting_has_no_file(file: Path) -> None:
    variables = {"HOLDFAST_PORT_FILE": str(file), "HOLDFAST_HOST": "::1", "HOLDFAST_HOST_FILE": ""}
    override(variables, {"PORT": "1", "HOST": "127.0.0.1"})
    assert variables == {"HOLDFAST_PORT": "1", "HOLDFAST_HOST": "127.0.0.1"}


@pytest.mark.parametrize(("own", "other"), [("PORT", "PORT_FILE"), ("PORT_FILE", "PORT")])
def test_a_variable_takes_precedence_over_both_forms_in_an_env_file(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, other: str
) -> None:
    file.write_text("9000")
    values = {"PORT": "8000", "PORT_FILE": str(file)}
    env_file = tmp_path / "settings"
    env_file.write_text(f"HOLDFAST_{other}={values[other]}\nHOLDFAST_HOST=::1\nA_FILE=b\n")
    environ = {f"HOLDFAST_{own}": values[own], "A": "a"}
    monkeypatch.setattr(os, "environ", environ)
    use_env_file(env_file)
    assert environ == {f"HOLDFAST_{own}": values[own], "HOLDFAST_HOST": "::1", "A": "a", "A_FILE": "b"}
