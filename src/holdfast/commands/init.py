"""Write the settings and fresh secrets of a new installation: for deploy/compose.yaml, or for systemd's units."""

from __future__ import annotations

import re
import secrets
import textwrap
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final, Literal, cast, get_args
from urllib.parse import urlsplit

import msgspec
import typer

from holdfast.commands.certificates import issue
from holdfast.settings.checks import OWN_SECRETS, find_faults
from holdfast.settings.descriptions import DESCRIPTIONS
from holdfast.settings.settings import IN_FILE, PREFIX, Settings, SettingsFault
from holdfast.settings.values import read_value

Target = Literal["compose", "systemd"]
Purpose = Literal["production", "sandbox"]

ASKED: Final[Mapping[Purpose, tuple[str, ...]]] = {
    "production": ("PUBLIC_URL", "SMTP_URL", "MAIL_FROM", "OPERATORS"),
    "sandbox": ("PUBLIC_URL",),
}
"""The settings that each installation decides for itself."""
DEFAULTS: Final[Mapping[Purpose, Mapping[str, str]]] = {
    "production": {},
    "sandbox": {"PUBLIC_URL": "https://localhost"},
}
MEMBERS: Final = ("holdfast-1", "holdfast-2")
"""The hosts of compose.yaml that link with each other."""
MEMBER_DAYS: Final = 3650
PUBLIC_DAYS: Final = 397
"""The most that browsers accept."""
LINE_CHARS_MAX: Final = 120

_PLAIN = re.compile(r"[\w.,:/@%+=?&~-]*", re.ASCII)


class CannotWrite(Exception):
    """A file exists, or cannot be written. The text says which, and nothing was overwritten."""


def ask_purpose() -> Purpose:
    """Ask on the terminal until the answer is one."""

    def read(text: str) -> Purpose:
        for each in get_args(Purpose):
            if text.strip() == each:
                return cast(Purpose, each)
        raise typer.BadParameter("it must be production or sandbox")

    return cast(Purpose, typer.prompt("production or sandbox", value_proc=read))


def answers_of(purpose: Purpose, given: Mapping[str, str | None], *, may_ask: bool) -> dict[str, str]:
    """Return what decides the installation: as given, else as answered on the terminal, else the default.

    Raises :class:`SettingsFault` with a line for each value that is missing or invalid.
    """
    answers: dict[str, str] = {}
    faults = []
    for name in ASKED[purpose]:
        text, default = given[name], DEFAULTS[purpose].get(name)
        if text is None and may_ask:
            answers[name] = typer.prompt(
                f"{PREFIX}{name}: {DESCRIPTIONS[name]}\n", default=default, value_proc=partial(_answer, name)
            )
            continue
        try:
            answers[name] = check_answer(name, text or default or "")
        except ValueError as fault:
            option = name.lower().replace("_", "-")
            faults.append(f"--{option}: {PREFIX}{name} {fault}")
    if faults:
        raise SettingsFault(tuple(faults))
    return answers


def _answer(name: str, text: str) -> str:
    try:
        return check_answer(name, text)
    except ValueError as fault:
        # The question is repeated.
        raise typer.BadParameter(f"it {fault}") from None


def check_answer(name: str, text: str) -> str:
    """Return a setting's text without blanks around it. Raises ValueError with the rest of a sentence."""
    text = text.strip()
    if not text:
        raise ValueError("is missing")
    if re.search(r"['\\\n]", text):
        raise ValueError("must have no quotes, backslashes and line ends")
    [kind] = (field.type for field in msgspec.structs.fields(Settings) if field.encode_name == name)
    read_value(kind, text)
    return text


def new_secrets(target: Target, answers: Mapping[str, str]) -> dict[str, str]:
    """Return the contents of secrets by their names, which for compose are those of files; most are new."""
    found = {name.lower(): secrets.token_urlsafe(36) for name in OWN_SECRETS}
    if target == "compose":
        password = found["database_password"] = secrets.token_urlsafe(36)
        found["database_url"] = f"postgresql://holdfast:{password}@/holdfast?host=/run/postgresql"
        found["grafana_password"] = secrets.token_urlsafe(36)
        members = issue("Holdfast members", MEMBERS, days=MEMBER_DAYS)
        found |= {"members-ca.crt": members.authority, "member.crt": members.certificate, "member.key": members.key}
        found["smtp_url"] = answers.get("SMTP_URL", "")
        host = urlsplit(answers["PUBLIC_URL"]).hostname or "localhost"
        public = issue(
            f"Holdfast at {host}", (host, "127.0.0.1") if host == "localhost" else (host,), days=PUBLIC_DAYS
        )
        found |= {"tls-ca.crt": public.authority, "tls.pem": public.certificate + public.key}
    return found


def settings_of(
    target: Target, purpose: Purpose, answers: Mapping[str, str], secret: Mapping[str, str]
) -> dict[str, str]:
    """Return the settings of the file by their names. Raises :class:`SettingsFault` if the service refuses them."""
    given = {"ENV": "production" if purpose == "production" else "development", **answers}
    if target == "compose":
        given["PROCESSES"] = "1"
        elsewhere = {"DATABASE_URL": secret["database_url"], "CATALOG": "catalog.toml"}
    else:
        given |= {
            "PORT": "8000",
            "OPS_PORT": "9000",
            "TRUSTED_PROXIES": "127.0.0.1",
            "DATABASE_URL": "postgresql:///holdfast?host=/run/postgresql",
            "DATA_DIR": "/var/lib/holdfast",
            "CATALOG": "/etc/holdfast/catalog.toml",
        }
        elsewhere = {}
    own = {name: secret[name.lower()] for name in OWN_SECRETS}
    faults = tuple(f"{PREFIX}{name} {trouble}" for name, trouble in find_faults({**given, **elsewhere, **own}))
    if faults:
        raise SettingsFault(faults)
    if target == "systemd":
        return given | own
    # In a file like the secrets, as it has the mail server's password.
    return {
        f"{name}{IN_FILE}" if name == "SMTP_URL" else name: "/run/secrets/smtp_url" if name == "SMTP_URL" else value
        for name, value in given.items()
    }


def env_file(target: Target, purpose: Purpose, settings: Mapping[str, str]) -> str:
    """Return the file's text, in which a comment explains each line."""
    if target == "compose":
        about = "Settings of compose.yaml; its secrets are in the folder `secrets` beside this file."
        lines = [*_of_compose(purpose, settings["PUBLIC_URL"])]
    else:
        about = "Settings and secrets of holdfast.service. The service reads them at its start."
        lines = []
    lines += [(f"{PREFIX}{name}", value, _meaning(name)) for name, value in settings.items()]
    return _comment(about) + "".join(
        f"\n{_comment(meaning)}{name}={_quoted(value)}\n" for name, value, meaning in lines
    )


def _meaning(name: str) -> str:
    setting = name.removesuffix(IN_FILE)
    return DESCRIPTIONS[setting] if name == setting else f"the file that has {DESCRIPTIONS[setting]}"


def _of_compose(purpose: Purpose, public_url: str) -> Iterator[tuple[str, str, str]]:
    """Yield the variables of compose.yaml itself, each with its value and meaning."""
    is_sandbox = purpose == "sandbox"
    yield (
        "COMPOSE_PROFILES",
        "sandbox" if is_sandbox else "",
        "what runs in addition, separated by commas: sandbox (a studio that makes placeholders), monitoring "
        "(Prometheus and Grafana)",
    )
    yield (
        "CATALOG_FOLDER",
        "./sandbox" if is_sandbox else "./catalog",
        "the folder of catalog.toml: your providers, models and prices",
    )
    yield (
        "HTTPS_PORT",
        str(urlsplit(public_url).port or 443),
        "this machine's port for the API, the one of PUBLIC_URL",
    )
    yield "HTTP_PORT", "80", "this machine's port from which browsers are sent to https"
    yield (
        "NETWORK",
        "10.213.74",
        "the beginning of the containers' addresses: a private network that this machine does not use yet",
    )


def _quoted(value: str) -> str:
    """Quote a value such that systemd and compose read the same."""
    return value if _PLAIN.fullmatch(value) else f"'{value}'"


def _comment(text: str) -> str:
    return textwrap.fill(text, LINE_CHARS_MAX, initial_indent="# ", subsequent_indent="# ") + "\n"


def write(target: Target, path: Path, text: str, secret: Mapping[str, str]) -> list[Path]:
    """Write the file; for compose ``path`` is the folder for it and for the secrets. Returns what was written.

    Raises :class:`CannotWrite`.
    """
    folder = path / "secrets"
    file = path if target == "systemd" else path / ".env"
    found = [file] if target == "systemd" else [file, folder]
    for each in found:
        if each.exists():
            raise CannotWrite(f"{each} exists: it is not overwritten")
    try:
        if target == "compose":
            # The folder is closed to other users. What is in it is mounted into containers, whose users have other
            # numbers, so there all may read it.
            folder.mkdir(mode=0o700)
            for name, content in secret.items():
                _write(folder / name, content if content.endswith("\n") else f"{content}\n", mode=0o444)
        _write(file, text, mode=0o600)
    except OSError as fault:
        raise CannotWrite(f"{fault.filename} cannot be written: {fault.strerror}") from fault
    return found


def _write(path: Path, content: str, *, mode: int) -> None:
    path.touch(mode=0o600, exist_ok=False)
    path.write_text(content, "utf-8")
    path.chmod(mode)
