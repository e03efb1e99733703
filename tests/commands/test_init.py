"""``holdfast init``: the service takes what it writes, it asks for what is missing, and overwrites nothing."""

from __future__ import annotations

import os
import pty
import re
import ssl
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from holdfast.cluster.endpoints import mutual_tls
from holdfast.commands.cli import app
from holdfast.commands.init import ASKED, env_file, settings_of
from holdfast.settings.checks import OWN_SECRETS
from holdfast.settings.descriptions import DESCRIPTIONS
from holdfast.settings.env_file import parse_env_file
from holdfast.settings.settings import Settings, load_settings
from holdfast.settings.warnings import find_warnings

ROOT = Path(__file__).parent.parent.parent
ANSWERS = {
    "PUBLIC_URL": "https://api.example.com",
    "SMTP_URL": "smtps://user:password@mail.example.com",
    "MAIL_FROM": "Example <no-reply@example.com>",
    "OPERATORS": "ops@example.com",
}
GIVEN = [word for name, text in ANSWERS.items() for word in (f"--{name.lower().replace('_', '-')}", text)]
PRODUCTION = ["--for", "production", *GIVEN]


def init(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["init", *map(str, words)], catch_exceptions=False)


def written(file: Path) -> dict[str, str]:
    found = parse_env_file(file.read_bytes())
    assert found.left_out == []
    return found.variables


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def loaded(variables: dict[str, str], folder: Path) -> Settings:
    """As the service reads them, with files of this machine."""
    (folder / "catalog.toml").touch()
    own = {"HOLDFAST_CATALOG": str(folder / "catalog.toml"), "HOLDFAST_DATA_DIR": str(folder / "var")}
    return load_settings(
        {name: value for name, value in {**variables, **own}.items() if name.startswith("HOLDFAST_")}
    )


def test_production_accepts_the_file_for_systemd_without_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.env"
    assert init("systemd", file, *PRODUCTION).output == f"wrote {file}\n"
    settings = loaded(written(file), tmp_path)
    assert settings.is_production
    assert list(find_warnings(settings)) == []
    assert (settings.public_url, settings.mail_from) == (ANSWERS["PUBLIC_URL"], ANSWERS["MAIL_FROM"])
    assert mode(file) == 0o600


def test_production_accepts_the_files_for_compose_without_a_warning(tmp_path: Path) -> None:
    assert init("compose", tmp_path, *PRODUCTION).exit_code == 0
    folder = tmp_path / "secrets"
    own = {f"HOLDFAST_{name}": (folder / name.lower()).read_text() for name in (*OWN_SECRETS, "DATABASE_URL")}
    listening = {"HOLDFAST_OPS_PORT": "9000"}
    variables = written(tmp_path / ".env")
    assert variables["HOLDFAST_SMTP_URL_FILE"] == "/run/secrets/smtp_url"
    assert ANSWERS["SMTP_URL"] not in variables.values()
    mail = {"HOLDFAST_SMTP_URL_FILE": str(folder / "smtp_url")}
    settings = loaded({**variables, **own, **listening, **mail}, tmp_path)
    assert settings.smtp_url == ANSWERS["SMTP_URL"]
    assert settings.is_production
    assert list(find_warnings(settings)) == []
    assert (folder / "database_password").read_text().strip() in (settings.database_url or "")
    # No other user passes the folder; below it, a container's user reads whatever is mounted.
    assert (mode(tmp_path / ".env"), mode(folder)) == (0o600, 0o700)
    assert {mode(each) for each in folder.iterdir()} == {0o444}
    assert [name for name, value in written(tmp_path / ".env").items() if value in own.values()] == []


@pytest.mark.parametrize(
    "host", ["api.example.com", f"a-load-balancer-{'0123456789' * 4}.eu-central-1.elb.example.com"]
)
def test_the_certificates_are_those_that_members_and_haproxy_take(tmp_path: Path, host: str) -> None:
    assert init("compose", tmp_path, *PRODUCTION, "--public-url", f"https://{host}").exit_code == 0
    folder = tmp_path / "secrets"
    mutual_tls(certificate=folder / "member.crt", key=folder / "member.key", authority=folder / "members-ca.crt")
    for authority, certificate, hosts in (
        ("members-ca.crt", "member.crt", ("holdfast-1", "holdfast-2")),
        ("tls-ca.crt", "tls.pem", (host,)),
    ):
        for each in hosts:
            command = ["openssl", "verify", "-x509_strict", "-verify_hostname", each, "-CAfile"]
            subprocess.run([*command, folder / authority, folder / certificate], check=True, capture_output=True)
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(folder / "tls.pem")


@pytest.mark.parametrize("target", ["compose", "systemd"])
def test_a_sandbox_needs_no_answers(tmp_path: Path, target: str) -> None:
    path = tmp_path if target == "compose" else tmp_path / "holdfast.env"
    assert init(target, path, "--for", "sandbox").exit_code == 0
    variables = written(tmp_path / ".env" if target == "compose" else path)
    assert (variables["HOLDFAST_ENV"], variables["HOLDFAST_PUBLIC_URL"]) == ("development", "https://localhost")
    assert loaded(variables, tmp_path).sandbox_enabled


def test_no_two_installations_have_a_secret_in_common(tmp_path: Path) -> None:
    found: list[str] = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        init("compose", tmp_path / name, "--for", "sandbox")
        # A sandbox has no mail server.
        found += [each.read_text() for each in (tmp_path / name / "secrets").iterdir() if each.name != "smtp_url"]
    assert len(found) == len(set(found))


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.env"
    file.write_text("mine")
    refused = init("systemd", file, *PRODUCTION)
    assert (refused.exit_code, refused.stderr) == (2, f"{file} exists: it is not overwritten\n")
    assert file.read_text() == "mine"
    (tmp_path / "secrets").mkdir()
    refused = init("compose", tmp_path, *PRODUCTION)
    assert (refused.exit_code, refused.stderr) == (2, f"{tmp_path / 'secrets'} exists: it is not overwritten\n")
    assert {each.name for each in tmp_path.iterdir()} == {"holdfast.env", "secrets"}


def test_without_a_terminal_what_is_missing_is_listed(tmp_path: Path) -> None:
    refused = init("compose", tmp_path)
    assert (refused.exit_code, refused.stderr) == (2, "--for is missing: production or sandbox\n")
    refused = init("compose", tmp_path, "--for", "production", "--public-url", "api.example.com")
    assert (refused.exit_code, refused.stderr.splitlines()) == (
        2,
        [
            "--public-url: HOLDFAST_PUBLIC_URL must be a URL beginning https:// or http://",
            "--smtp-url: HOLDFAST_SMTP_URL is missing",
            "--mail-from: HOLDFAST_MAIL_FROM is missing",
            "--operators: HOLDFAST_OPERATORS is missing",
        ],
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "text", "fault"),
    [
        ("--public-url", "http://api.example.com", "HOLDFAST_PUBLIC_URL must begin with https://"),
        ("--public-url", "https://münchen.example", "--public-url: HOLDFAST_PUBLIC_URL must be printable ASCII"),
        ("--public-url", "https://api .example", "--public-url: HOLDFAST_PUBLIC_URL must be printable ASCII"),
        (
            "--smtp-url",
            "smtp://mail.example.com?starttls=off",
            "HOLDFAST_SMTP_URL has starttls=off for another host",
        ),
        ("--mail-from", "Ada's <a@example.com>", "--mail-from: HOLDFAST_MAIL_FROM must have no quotes"),
        ("--operators", "*@example.com", "--operators: HOLDFAST_OPERATORS must be whole e-mail addresses"),
    ],
)
def test_what_production_would_refuse_is_refused(tmp_path: Path, option: str, text: str, fault: str) -> None:
    refused = init("systemd", tmp_path / "holdfast.env", *PRODUCTION, option, text)
    assert refused.exit_code == 2
    assert refused.stderr.startswith(fault)
    assert list(tmp_path.iterdir()) == []


def test_on_a_terminal_it_asks_until_each_answer_is_valid(tmp_path: Path) -> None:
    answers = ["testing", "production", "api.example.com", *ANSWERS.values()]
    ours, theirs = pty.openpty()
    program = [sys.executable, "-m", "holdfast", "init", "systemd", str(tmp_path / "holdfast.env")]
    process = subprocess.Popen(program, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    # The terminal keeps the lines until they are read.
    os.write(ours, "".join(f"{line}\n" for line in answers).encode())
    shown = b""
    with suppress(OSError):  # as the program has ended
        while chunk := os.read(ours, 4096):
            shown += chunk
    os.close(ours)
    assert process.wait(60) == 0, shown.decode()
    assert b"it must be production or sandbox" in shown
    assert b"it must be a URL beginning" in shown
    assert {name: written(tmp_path / "holdfast.env")[f"HOLDFAST_{name}"] for name in ANSWERS} == ANSWERS


def test_the_example_is_what_init_writes() -> None:
    secret = {name.lower(): name for name in OWN_SECRETS} | {"database_url": "postgresql:///holdfast"}
    strong = {name: f"{value}-Zq3vN8xKfT2mWc7RbY5hJd9LsA4eGuPi" for name, value in secret.items()}
    text = env_file("compose", "production", settings_of("compose", "production", ANSWERS, strong))
    assert (ROOT / "deploy" / ".env.example").read_text() == text


def test_each_line_of_the_example_is_explained() -> None:
    blocks = (ROOT / "deploy" / ".env.example").read_text().strip().split("\n\n")[1:]
    assert [block for block in blocks if not re.fullmatch(r"(?:# .+\n)+[A-Z_]+=.*", block)] == []


def test_the_explanations_are_those_of_the_page_of_settings() -> None:
    page = (ROOT / "docs" / "settings.md").read_text("utf-8")
    rows = re.findall(r"^\| (`[A-Z0-9_`, ]+`) \| .*? \| (.*) \|$", page, re.MULTILINE)
    meanings = {name: text for cell, text in rows for name in re.findall(r"\w+", cell)}
    plain = {name: re.sub(r"\[([^]]+)]\([^)]+\)|`", r"\1", text) for name, text in meanings.items()}
    assert {name for name, text in DESCRIPTIONS.items() if text not in plain[name]} == set()
    assert DESCRIPTIONS.keys() <= {field.encode_name for field in msgspec.structs.fields(Settings)}
    assert {name for names in ASKED.values() for name in names} <= DESCRIPTIONS.keys()
