from __future__ import annotations

import base64
import errno
import json
import random
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from holdfast.settings import secret_strength, values
from holdfast.settings.secret_strength import CannotEstimate, find_weak
from holdfast.settings.settings import Settings, SettingsFault, load_locations, load_service_location, load_settings
from holdfast.settings.warnings import find_warnings

CARD_KEY = "sk_live_51Nq8ZtKfRw2mXc7bY5hJd9L"
OLD_SECRET = "whsec_Gk4tVn8wQz2rMb7xYd5hLf9sJp3cEa6U"
NEW_SECRET = "whsec_Tj6mWc9qXb3nRz8kPd5hVf2sLg7yEa4K"
STRONG = {
    "HOLDFAST_OPERATOR_TOKEN": "op-Zq3vN8xKfT2mWc7RbY5hJd9LsA4eGuPi",
    "HOLDFAST_CALLBACK_SECRET": "cb-Hy6tRw1QnMz8bVx3KdFj5sLp2GcEa9Uo",
    "HOLDFAST_SANDBOX_SECRET": "sb-Lk4jHg7fDs2aPo9iUy5tRe3wQz8xCv6B",
}


@pytest.fixture
def development(tmp_path: Path) -> dict[str, str]:
    return {"HOLDFAST_DATA_DIR": str(tmp_path / "var")}


@pytest.fixture
def production(tmp_path: Path) -> dict[str, str]:
    catalog = tmp_path / "catalog.toml"
    catalog.touch()
    return {
        "HOLDFAST_ENV": "production",
        "HOLDFAST_DATA_DIR": str(tmp_path / "var"),
        "HOLDFAST_CATALOG": str(catalog),
        "HOLDFAST_DATABASE_URL": "postgresql://db/holdfast",
        **STRONG,
    }


def faults(environ: dict[str, str]) -> tuple[str, ...]:
    with pytest.raises(SettingsFault) as caught:
        load_settings(environ)
    return caught.value.lines


def test_development_needs_nothing(development: dict[str, str]) -> None:
    settings = load_settings(development)
    assert settings.env == "development"
    assert not settings.is_production
    assert (settings.host, settings.port, settings.log_format) == ("127.0.0.1", 8000, "console")
    assert settings.database_url is None
    assert settings.public_url is None
    assert settings.sandbox_enabled
    assert settings.recharge_max_micro == settings.order_max_micro == 10_000_000_000
    assert list(find_warnings(settings)) == []


EVERYONE = [
    "0.0.0.0/0",
    "::/0",
    "10.0.0.1, 0.0.0.0/0",
    "0.0.0.0/1,128.0.0.0/1",
    "::/1,8000::/1",
    "128.0.0.0/2",
    "2000::/4,3000::/4",
    "2600::/8,2a00::/8,2400::/7",
    ",".join(f"{first}.0.0.0/8" for first in range(1, 33, 2)),
]


@pytest.mark.parametrize("networks", EVERYONE)
def test_proxies_at_public_addresses_are_refused_in_production(
    production: dict[str, str], development: dict[str, str], networks: str
) -> None:
    (line,) = faults({**production, "HOLDFAST_TRUSTED_PROXIES": networks})
    assert line.startswith("HOLDFAST_TRUSTED_PROXIES trusts public addresses: ")
    settings = load_settings({**development, "HOLDFAST_TRUSTED_PROXIES": networks})
    assert list(find_warnings(settings)) == [
        "HOLDFAST_TRUSTED_PROXIES trusts public addresses: production refuses it"
    ]


def test_proxies_in_networks_of_their_own_are_accepted(production: dict[str, str]) -> None:
    given = {**production, "HOLDFAST_TRUSTED_PROXIES": "104.16.0.0/12, 10.0.0.0/8, fc00::/7, 2606:4700::/32, ::1"}
    assert len(load_settings(given).trusted_proxies) == 5


def test_development_generates_missing_secrets_once(development: dict[str, str]) -> None:
    first = load_settings(development)
    folder = first.data_dir / "secrets"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {
        "operator_token": 0o600,
        "callback_secret": 0o600,
        "sandbox_secret": 0o600,
        "server_key": 0o600,
    }
    assert (folder / "operator_token").read_text().strip() == first.operator_token
    assert len({first.operator_token, first.callback_secret, first.sandbox_secret}) == 3
    assert load_settings(development) == first


def test_processes_started_together_agree_on_generated_secrets(development: dict[str, str]) -> None:
    start = threading.Barrier(8)
    found: list[Settings] = []

    def load() -> None:
        start.wait()
        found.append(load_settings(development))

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len({(each.operator_token, each.server_key) for each in found}) == 1
    assert len(list((found[0].data_dir / "secrets").iterdir())) == 4


def test_a_given_secret_overrides_a_stored_one(development: dict[str, str]) -> None:
    load_settings(development)
    settings = load_settings({**development, "HOLDFAST_OPERATOR_TOKEN": "short"})
    assert settings.operator_token == "short"


def test_production_starts_with_strong_secrets_and_writes_nothing(production: dict[str, str]) -> None:
    settings = load_settings(production)
    assert settings.is_production
    assert settings.operator_token == STRONG["HOLDFAST_OPERATOR_TOKEN"]
    assert settings.log_format == "json"
    assert not settings.sandbox_enabled
    assert not settings.data_dir.exists()


def test_production_keeps_an_embedded_ledger_only_if_it_is_named(production: dict[str, str]) -> None:
    del production["HOLDFAST_DATABASE_URL"]
    for load in (load_settings, load_locations):
        with pytest.raises(SettingsFault) as caught:
            load(production)
        (line,) = caught.value.lines
        assert line.startswith("HOLDFAST_DATABASE_URL is missing; production needs it, or the value embedded")
        assert load({**production, "HOLDFAST_DATABASE_URL": "embedded"}).database_url is None


@pytest.mark.parametrize("address", ["http://pay.example", "HTTP://pay.example", "http://127.0.0.1:8000"])
def test_production_refuses_a_public_address_without_tls(production: dict[str, str], address: str) -> None:
    (line,) = faults({**production, "HOLDFAST_PUBLIC_URL": address})
    assert line.startswith("HOLDFAST_PUBLIC_URL must begin with https://")


def test_production_sends_the_card_key_only_over_tls(production: dict[str, str]) -> None:
    base = {**production, "HOLDFAST_CARD_API_BASE": "Http://127.0.0.1:12111"}
    for key in (CARD_KEY, CARD_KEY.replace("sk_", "rk_"), "a-gateway-key-9f8a7b6c5d4e3f2a"):
        (line,) = faults({**base, "HOLDFAST_CARD_API_KEY": key})
        assert line.startswith("HOLDFAST_CARD_API_BASE must begin with https://")
    load_settings({**base, "HOLDFAST_CARD_API_KEY": CARD_KEY.replace("live", "test")})


@pytest.mark.parametrize("name", ["OPERATORS", "OPERATOR_READERS"])
def test_operators_are_named_by_whole_addresses(development: dict[str, str], name: str) -> None:
    (line,) = faults({**development, f"HOLDFAST_{name}": "ada@example.com, *@example.com"})
    assert line.startswith(f"HOLDFAST_{name} must be whole e-mail addresses")


def test_production_lists_each_missing_secret(production: dict[str, str]) -> None:
    environ = {name: value for name, value in production.items() if name not in STRONG}
    assert faults(environ) == (
        "HOLDFAST_OPERATOR_TOKEN is missing; production needs it",
        "HOLDFAST_CALLBACK_SECRET is missing; production needs it",
        "HOLDFAST_SANDBOX_SECRET is missing; production needs it",
    )


WEAK = (
    "x" * 64,
    "abab" * 16,
    "tooshort-1234567890",
    "abcabcabcabcabcabcabcabcabcabcabcabc",
    "12345678901234567890123456789012",
    "0123456789abcdef0123456789abcdef",
    "mysupersecretpassword1234567890!",
    "holdfast-production-secret-000001",
    "password000000000000000000000000000000",
    "whsec_" + "changeme-" * 5,
    "correct-horse-battery-staple-operator-token",
    "the-operators-token-of-our-production-service-2026",
    "zahnradbahn-fernsehturm-butterbrot-kaffeemaschine",
    "Sunflower42Meadow17Hedgehog93Blanket28",
    "TheQuickBrownFoxJumpsOverTheLazyDogAgainAndAgain",
    "opensesameopentreasurecaveforfortythieves",
    "0ur-53rv1c3-0p3r4t0r5-t0k3n-f0r-pr0duct10n-u53",
    bytes(range(32)).hex(),
    base64.b64encode(bytes(range(255, 223, -1))).decode(),
)


def test_secrets_that_are_padded_or_made_of_words_are_weak() -> None:
    reason = "is too weak; give at least 32 random characters"
    assert find_weak((secret, 32) for secret in WEAK) == {(secret, 32): reason for secret in WEAK}


@pytest.mark.parametrize("name", [*STRONG, "HOLDFAST_SERVER_KEY"])
def test_production_refuses_a_weak_secret_without_showing_it(production: dict[str, str], name: str) -> None:
    lines = faults({**production, name: WEAK[-3]})
    assert lines == (f"{name} is too weak; give at least 32 random characters",)


EXAMPLE = re.compile(r"""(?:secret|token|key)\w* *= *b?"([^"…\s]{12,})\"""")


def test_production_refuses_secrets_from_the_documentation(production: dict[str, str]) -> None:
    root = Path(__file__).parents[2]
    shown = {found for page in (root / "docs").glob("*.md") for found in EXAMPLE.findall(page.read_text("utf-8"))}
    assert len(shown) >= 4
    for example in shown:
        (line,) = faults({**production, "HOLDFAST_OPERATOR_TOKEN": example})
        assert line.startswith("HOLDFAST_OPERATOR_TOKEN is ")
        assert example not in line


def test_production_refuses_one_value_for_two_secrets(production: dict[str, str]) -> None:
    same = STRONG["HOLDFAST_CALLBACK_SECRET"]
    assert faults({**production, "HOLDFAST_SANDBOX_SECRET": same, "HOLDFAST_CARD_WEBHOOK_SECRET": same}) == (
        "HOLDFAST_SANDBOX_SECRET has the same value as HOLDFAST_CALLBACK_SECRET; give each its own",
        "HOLDFAST_CARD_WEBHOOK_SECRET has the same value as HOLDFAST_CALLBACK_SECRET; give each its own",
        "HOLDFAST_CARD_WEBHOOK_SECRET has the same value as HOLDFAST_SANDBOX_SECRET; give each its own",
    )


def test_two_listeners_of_one_address_need_two_ports(development: dict[str, str]) -> None:
    same = {"HOLDFAST_OPS_PORT": "8000", "HOLDFAST_STUDIO_PORT": "8000"}
    assert faults({**development, **same, "HOLDFAST_HOST": "0.0.0.0", "HOLDFAST_OPS_HOST": "10.0.0.5"}) == (
        "HOLDFAST_OPS_PORT has the same value as HOLDFAST_PORT; give each its own",
        "HOLDFAST_STUDIO_PORT has the same value as HOLDFAST_PORT; give each its own",
    )
    load_settings(
        {**development, "HOLDFAST_PORT": "8000", "HOLDFAST_OPS_PORT": "8000", "HOLDFAST_HOST": "10.0.0.5"}
    )
    load_settings({**development, "HOLDFAST_PORT": "0", "HOLDFAST_OPS_PORT": "0"})


def test_production_needs_a_catalog(production: dict[str, str]) -> None:
    del production["HOLDFAST_CATALOG"]
    (line,) = faults(production)
    assert line.startswith("HOLDFAST_CATALOG is missing; production needs one")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CARD_WEBHOOK_SECRET", "x"),
        ("CARD_WEBHOOK_SECRET", "whsec_secret"),
        ("CARD_WEBHOOK_SECRET", f"{NEW_SECRET}, whsec_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
        ("CARD_API_KEY", "x"),
        ("CARD_API_KEY", "sk_live_short"),
        ("CARD_API_KEY", "pk_live_51Nq8ZtKfRw2mXc7bY5hJd9L"),
        ("CARD_PUBLISHABLE_KEY", "x"),
        ("CARD_PUBLISHABLE_KEY", "sk_live_51Nq8ZtKfRw2mXc7bY5hJd9L"),
    ],
)
def test_production_refuses_invalid_card_keys(production: dict[str, str], name: str, value: str) -> None:
    lines = faults({**production, f"HOLDFAST_{name}": value})
    assert lines
    assert all(line.startswith(f"HOLDFAST_{name} ") and value not in line for line in lines)


def test_a_secret_key_is_refused_as_a_publishable_key(development: dict[str, str]) -> None:
    assert faults({**development, "HOLDFAST_CARD_PUBLISHABLE_KEY": CARD_KEY}) == (
        "HOLDFAST_CARD_PUBLISHABLE_KEY is a secret key, which would be sent to browsers",
    )


def test_development_accepts_weak_secrets_with_a_warning(development: dict[str, str]) -> None:
    settings = load_settings({**development, "HOLDFAST_OPERATOR_TOKEN": "short"})
    assert list(find_warnings(settings)) == ["HOLDFAST_OPERATOR_TOKEN is weak: production refuses it"]


def random_secret(seed: int) -> str:
    return random.Random(seed).randbytes(16).hex()


def test_random_secrets_are_strong() -> None:
    rng = random.Random(20261121)
    hosted = ["whsec_" + base64.b64encode(rng.randbytes(24)).decode() for _ in range(10)]
    assert find_weak([*((random_secret(seed), 32) for seed in range(10)), *((each, 24) for each in hosted)]) == {}


@pytest.mark.parametrize("program", ["is missing", "cat >&2; exit 1", "echo no estimates", "exec sleep 60"])
def test_no_secret_is_accepted_without_an_estimate(
    program: str,
    production: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    interpreter = tmp_path / "python"
    if program != "is missing":
        interpreter.write_text(f"#!/bin/sh\n{program}\n")
        interpreter.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    if program == "exec sleep 60":
        monkeypatch.setattr(secret_strength, "ESTIMATE_S", 0.0)
    secret = random_secret(101)
    with pytest.raises(CannotEstimate, match=r"^The strength of secrets cannot be estimated: ") as caught:
        load_settings({**production, "HOLDFAST_SERVER_KEY": secret})
    assert secret not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_the_time_for_estimates_grows_with_the_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    limits_s: list[float] = []

    def run(command: list[str], **given: Any) -> subprocess.CompletedProcess[bytes]:
        limits_s.append(given["timeout"])
        return subprocess.CompletedProcess(
            command, 0, json.dumps([[40, 0]] * len(json.loads(given["input"]))).encode()
        )

    monkeypatch.setattr(subprocess, "run", run)
    for count in (1, 100):
        assert find_weak((random_secret(200 + count + each), 32) for each in range(count)) == {}
    assert limits_s == [secret_strength.ESTIMATE_S, 100 * secret_strength.ESTIMATE_S]


def test_secrets_are_no_arguments_and_are_estimated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter, secret = tmp_path / "python", random_secret(100)
    interpreter.write_text('#!/bin/sh\necho "$@" >>"$0.arguments"\ncat >"$0.input"\necho "[[40, 0]]"\n')
    interpreter.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    for _ in range(2):
        assert find_weak([(secret, 32)]) == {}
    assert (tmp_path / "python.arguments").read_text() == "-P -m holdfast.settings.guesses\n"
    assert (tmp_path / "python.input").read_text() == f'["{secret}"]'


def test_a_secret_of_other_characters_is_refused(
    development: dict[str, str], production: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As os.environ has a byte that is not UTF-8; the process that estimates reads in this encoding.
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    assert faults({**production, "HOLDFAST_OPERATOR_TOKEN": "op-Zq3vN8xKfT2mWc7RbY5hJd9LsA4eGu€\udcff"}) == (
        "HOLDFAST_OPERATOR_TOKEN must be printable ASCII without blanks",
    )
    assert faults({**development, "HOLDFAST_OPERATOR_TOKEN": "two words"}) == (
        "HOLDFAST_OPERATOR_TOKEN must be printable ASCII without blanks",
    )


def test_the_server_key_follows_the_operator_token_unless_given(production: dict[str, str]) -> None:
    derived = load_settings(production).server_key
    other_token = {**production, "HOLDFAST_OPERATOR_TOKEN": "op-Nw5cRk8vQz2mTb7xYd4hLf9sGj3pEa6U"}
    own = {"HOLDFAST_SERVER_KEY": "sk-Vt6bWm9qXc3nRz8kPd5hJf2sLg7yEa4T"}
    assert len(derived) == 64
    assert load_settings(production).server_key == derived
    assert load_settings(other_token).server_key != derived
    assert load_settings({**production, **own}).server_key == load_settings({**other_token, **own}).server_key


def test_the_previous_server_key_opens_and_makes_nothing_new(production: dict[str, str]) -> None:
    new, old = "sk-Vt6bWm9qXc3nRz8kPd5hJf2sLg7yEa4T", "sk-Hr4dQp7wNc2xZb9vKt6mGs3jLf8yEu5A"
    before = load_settings({**production, "HOLDFAST_SERVER_KEY": old})
    rotated = {**production, "HOLDFAST_SERVER_KEY": new, "HOLDFAST_SERVER_KEY_PREVIOUS": old}
    settings = load_settings(rotated)
    assert settings.derived_keys("quotes") == (settings.derived_key("quotes"), before.derived_key("quotes"))
    assert before.derived_keys("quotes") == (before.derived_key("quotes"),)
    assert {new, old} <= set(settings.secret_values())
    assert faults({**rotated, "HOLDFAST_SERVER_KEY": ""}) == (
        "HOLDFAST_SERVER_KEY_PREVIOUS needs HOLDFAST_SERVER_KEY, the key that replaces it",
    )
    assert faults({**rotated, "HOLDFAST_SERVER_KEY_PREVIOUS": new}) == (
        "HOLDFAST_SERVER_KEY_PREVIOUS has the same value as HOLDFAST_SERVER_KEY; give each its own",
    )


@pytest.mark.parametrize(("connections", "waiting"), [("4096", 2048), ("1", 1)])
def test_half_of_the_connections_may_wait(development: dict[str, str], connections: str, waiting: int) -> None:
    assert load_settings({**development, "HOLDFAST_CONNECTIONS_MAX": connections}).waiting_max == waiting


def test_each_purpose_has_its_own_key(development: dict[str, str]) -> None:
    settings = load_settings(development)
    assert settings.derived_key("quotes") == settings.derived_key("quotes")
    assert settings.derived_key("quotes") != settings.derived_key("assets")


def test_no_secret_is_in_the_repr(production: dict[str, str]) -> None:
    environ = {
        **production,
        "HOLDFAST_SERVER_KEY": "key-Mn3bVc6xZl9kJh2gFd5sQw8eRt1yUi7o",
        "HOLDFAST_DATABASE_URL": "postgresql://user:dbpass@db/holdfast",
        "HOLDFAST_SMTP_URL": "smtps://user:mailpass@mail.example:465",
        "HOLDFAST_CARD_API_KEY": CARD_KEY,
        "HOLDFAST_CARD_WEBHOOK_SECRET": f"{OLD_SECRET}, {NEW_SECRET}",
    }
    settings = load_settings(environ)
    assert settings.card_webhook_secrets == (OLD_SECRET, NEW_SECRET)
    secret_values = settings.secret_values()
    own = {*STRONG.values(), environ["HOLDFAST_SERVER_KEY"]}
    assert {"dbpass", "mailpass", CARD_KEY, OLD_SECRET, NEW_SECRET} | own == set(secret_values)
    for value in secret_values:
        assert value not in repr(settings)


def test_all_faults_are_listed_at_once(development: dict[str, str], tmp_path: Path) -> None:
    lines = faults(
        {
            **development,
            "HOLDFAST_ENV": "staging",
            "HOLDFAST_PORT": "65536",
            "HOLDFAST_DATABASE_URL": "mysql://x/y",
            "HOLDFAST_PUBLIC_URL": "example.com",
            "HOLDFAST_CATALOG": str(tmp_path / "none.toml"),
            "HOLDFAST_SMTP_URL": "smtp://mail.example:notaport",
            "HOLDFAST_LOG_FORMAT": "xml",
            "HOLDFAST_OPERATORS": "ada@example.com, bob",
            "HOLDFAST_SANDBOX_ENABLED": "maybe",
            "HOLDFAST_ORDER_MAX": "1e3",
            "HOLDFAST_ASK_DEADLINE_S": "0",
            "HOLDFAST_OPERATOR_TOKN": "typo",
        }
    )
    assert lines == (
        "HOLDFAST_DATABASE_URL must be embedded, or begin postgresql://, postgres:// or postgresql+psycopg://",
        "HOLDFAST_CATALOG must be the name of a file that exists",
        "HOLDFAST_PORT must be an integer from 0 to 65535, not '65536'",
        "HOLDFAST_ENV must be one of development, production, not 'staging'",
        "HOLDFAST_PUBLIC_URL must be a URL beginning https:// or http://",
        "HOLDFAST_SMTP_URL must be a URL beginning smtp:// or smtps://",
        "HOLDFAST_LOG_FORMAT must be one of console, json, not 'xml'",
        "HOLDFAST_OPERATORS must be whole e-mail addresses separated by commas, without patterns",
        "HOLDFAST_SANDBOX_ENABLED must be true or false, not 'maybe'",
        'HOLDFAST_ORDER_MAX must be an amount of credits above zero, such as "10000.00"',
        "HOLDFAST_ASK_DEADLINE_S must be a number of seconds above 0 and below 10000000, not '0'",
        "HOLDFAST_OPERATOR_TOKN is not a setting; did you mean HOLDFAST_OPERATOR_TOKEN?",
    )
    assert not (tmp_path / "var").exists()


def test_a_data_folder_that_cannot_be_created_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    lines = faults({"HOLDFAST_DATA_DIR": str(tmp_path / "file" / "var")})
    assert len(lines) == 1
    assert lines[0].startswith("HOLDFAST_DATA_DIR: cannot store secrets")


def test_a_home_folder_of_an_unknown_user_is_a_fault() -> None:
    assert faults({"HOLDFAST_DATA_DIR": "~no-such-user/var"}) == (
        "HOLDFAST_DATA_DIR names the home folder of a user who does not exist",
    )


@pytest.mark.parametrize("content", [b"", b"\n", b"two words\n", b"\xff\xfe"])
def test_a_damaged_file_of_a_secret_is_a_fault(development: dict[str, str], content: bytes) -> None:
    folder = Path(development["HOLDFAST_DATA_DIR"]) / "secrets"
    folder.mkdir(parents=True)
    (folder / "operator_token").write_bytes(content)
    assert faults(development) == (f"HOLDFAST_DATA_DIR: a file in {folder} has no secret; restore or remove it",)


def test_values_are_parsed_by_type(development: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "catalog.toml").write_text("")
    settings = load_settings(
        {
            **development,
            "HOLDFAST_PORT": "0",
            "HOLDFAST_PUBLIC_URL": "HTTPS://pay.example/",
            "HOLDFAST_CATALOG": str(tmp_path / "catalog.toml"),
            "HOLDFAST_OPERATORS": " Ada@Example.com ,, bob@example.com",
            "HOLDFAST_SANDBOX_ENABLED": "no",
            "HOLDFAST_RECHARGE_MAX": "0.5",
            "HOLDFAST_SHUTDOWN_S": "2.5",
            "HOLDFAST_HOST": "   ",
            "UNRELATED": "x",
        }
    )
    assert settings.port == 0
    assert settings.public_url == "https://pay.example"
    assert settings.catalog == tmp_path / "catalog.toml"
    assert settings.operators == ("ada@example.com", "bob@example.com")
    assert settings.sandbox_enabled is False
    assert settings.recharge_max_micro == 500_000
    assert settings.shutdown_s == 2.5
    assert settings.host == "127.0.0.1"


@pytest.mark.parametrize(
    "url",
    [
        "postgres://db/holdfast",
        "postgresql:///holdfast?host=/run/postgresql",
        "postgresql://one:5432,two:5433/holdfast?target_session_attrs=read-write",
        "postgresql://10.0.0.8,[fd00::8]:5433/holdfast",
    ],
)
def test_libpq_database_urls_are_passed_on_unchanged(development: dict[str, str], url: str) -> None:
    assert load_settings({**development, "HOLDFAST_DATABASE_URL": url}).database_url == url


def test_a_sqlalchemy_database_url_is_accepted(development: dict[str, str]) -> None:
    url = "postgresql+psycopg://user:pw@db/holdfast"
    settings = load_settings({**development, "HOLDFAST_DATABASE_URL": url})
    assert settings.database_url == "postgresql://user:pw@db/holdfast"


def test_a_long_wrong_value_is_not_shown(development: dict[str, str]) -> None:
    assert faults({**development, "HOLDFAST_PORT": STRONG["HOLDFAST_OPERATOR_TOKEN"]}) == (
        "HOLDFAST_PORT must be an integer from 0 to 65535",
    )


def test_production_lists_wrong_values_and_missing_secrets_together(production: dict[str, str]) -> None:
    del production["HOLDFAST_SANDBOX_SECRET"]
    assert faults({**production, "HOLDFAST_PORT": "x"}) == (
        "HOLDFAST_PORT must be an integer from 0 to 65535, not 'x'",
        "HOLDFAST_SANDBOX_SECRET is missing; production needs it",
    )


def test_doubtful_settings_are_warnings(production: dict[str, str]) -> None:
    environ = {
        **production,
        "HOLDFAST_SANDBOX_ENABLED": "true",
        "HOLDFAST_WEBHOOK_LOCAL_ALLOWED": "true",
        "HOLDFAST_CARD_API_KEY": CARD_KEY,
    }
    settings = load_settings(environ)
    assert settings.sandbox_enabled
    assert [line.split()[0] for line in find_warnings(settings)] == [
        "HOLDFAST_SMTP_URL",
        "HOLDFAST_SANDBOX_ENABLED",
        "HOLDFAST_WEBHOOK_LOCAL_ALLOWED",
        "HOLDFAST_DATABASE_URL",
        "HOLDFAST_OPS_PORT",
        "HOLDFAST_PUBLIC_URL",
        "HOLDFAST_CARD_WEBHOOK_SECRET",
        "HOLDFAST_CARD_PUBLISHABLE_KEY",
    ]


@pytest.mark.parametrize(
    ("url", "is_warned"),
    [
        ("embedded", False),
        ("postgresql:///holdfast?host=/run/postgresql", False),
        ("postgresql://%2Frun%2Fpostgresql/holdfast", False),
        ("postgresql://user:p%40ss@localhost:5432/holdfast", False),
        ("postgresql://127.0.0.9,[::1]:5433/holdfast", False),
        ("postgresql:///holdfast", False),
        ("postgresql://db/holdfast", True),
        ("postgresql://db/holdfast?sslmode=require", True),
        ("postgresql://db/holdfast?sslmode=verify-ca&sslrootcert=/a.crt", True),
        ("postgresql://db/holdfast?sslmode=verify-full&sslrootcert=/a.crt", False),
        ("postgresql://db/holdfast?sslrootcert=system", False),
        ("postgresql://localhost,10.0.0.8:5433/holdfast?target_session_attrs=read-write", True),
        ("postgresql://[fd00::8]:5432/holdfast", True),
        ("postgresql://localhost/holdfast?host=db", True),
        ("postgresql://localhost/holdfast?host=localhost&hostaddr=10.0.0.8", True),
        ("postgresql://db/holdfast?hostaddr=127.0.0.1", False),
    ],
)
def test_production_warns_of_a_database_whose_name_is_not_checked(
    production: dict[str, str], url: str, is_warned: bool
) -> None:
    lines = find_warnings(load_settings({**production, "HOLDFAST_DATABASE_URL": url}))
    warned = [line for line in lines if line.startswith("HOLDFAST_DATABASE_URL ")]
    assert len(warned) == is_warned
    assert all("without sslmode=verify-full" in line for line in warned)


@pytest.mark.parametrize("host", ["mail.example.com", "10.0.0.8", "[fd00::8]"])
def test_production_sends_no_mail_without_tls_to_another_host(
    production: dict[str, str], development: dict[str, str], host: str
) -> None:
    in_clear = {"HOLDFAST_SMTP_URL": f"smtp://ann:a-password@{host}:25?starttls=off"}
    [line] = faults({**production, **in_clear})
    assert line.startswith("HOLDFAST_SMTP_URL has starttls=off for another host: ")
    assert load_settings({**development, **in_clear}).smtp_url
    for url in (f"smtp://{host}", f"smtp://{host}?starttls=required", f"smtps://{host}?starttls=off"):
        assert load_settings({**production, "HOLDFAST_SMTP_URL": url}).smtp_url == url


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_mail_may_go_without_tls_to_a_server_on_this_machine(production: dict[str, str], host: str) -> None:
    url = f"smtp://{host}:25?starttls=off"
    assert load_settings({**production, "HOLDFAST_SMTP_URL": url}).smtp_url == url


def test_locations_are_read_without_secrets(production: dict[str, str], tmp_path: Path) -> None:
    environ = {name: value for name, value in production.items() if name not in STRONG}
    url = "postgresql://user:dbpass@db/holdfast"
    found = load_locations({**environ, "HOLDFAST_DATABASE_URL": url})
    assert (found.data_dir, found.database_url) == (tmp_path / "var", url)
    assert found.catalog == tmp_path / "catalog.toml"
    assert "dbpass" not in repr(found)
    with pytest.raises(SettingsFault, match="HOLDFAST_CATALOG"):
        load_locations({"HOLDFAST_CATALOG": str(tmp_path / "none.toml")})


@pytest.mark.parametrize("load", [load_locations, load_service_location])
def test_commands_that_read_only_locations_refuse_unknown_names_too(load: Callable[..., object]) -> None:
    with pytest.raises(SettingsFault, match="HOLDFAST_PROT is not a setting; did you mean HOLDFAST_PORT"):
        load({"HOLDFAST_PROT": "8000"})


def test_an_s3_store_needs_a_bucket_and_keys(development: dict[str, str]) -> None:
    assert faults({**development, "HOLDFAST_ASSET_STORE": "s3", "HOLDFAST_S3_BUCKET": "results"}) == (
        "HOLDFAST_S3_ACCESS_KEY_ID is missing; HOLDFAST_ASSET_STORE=s3 needs it",
        "HOLDFAST_S3_SECRET_ACCESS_KEY is missing; HOLDFAST_ASSET_STORE=s3 needs it",
    )


def test_s3_settings_are_read_and_the_key_is_not_shown(development: dict[str, str]) -> None:
    settings = load_settings(
        {
            **development,
            "HOLDFAST_ASSET_STORE": "s3",
            "HOLDFAST_S3_BUCKET": "results",
            "HOLDFAST_S3_ENDPOINT": "https://s3.example.org/",
            "HOLDFAST_S3_ACCESS_KEY_ID": "holdfast",
            "HOLDFAST_S3_SECRET_ACCESS_KEY": "s3-secret",
        }
    )
    assert (settings.s3_bucket, settings.s3_region) == ("results", "us-east-1")
    assert settings.s3_endpoint == "https://s3.example.org"
    assert "s3-secret" not in repr(settings)
    assert "s3-secret" in settings.secret_values()


def test_a_file_that_cannot_be_read_or_that_all_may_read_is_named(
    development: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"HOLDFAST_MEMBER_{name}": tmp_path / name.lower() for name in ("CERTIFICATE", "KEY", "CA")}
    for path in files.values():
        path.touch(mode=0o640)
    given = development | {name: str(path) for name, path in files.items()}
    key = files["HOLDFAST_MEMBER_KEY"]
    assert load_settings(given).member_key == key
    key.chmod(0o644)
    assert faults(given) == (f"HOLDFAST_MEMBER_KEY names {key}, which every user may read or write (mode 644)",)

    # These tests may run as root, which may read everything.
    def refuse(path: Path, *_: Any) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    key.chmod(0o600)
    monkeypatch.setattr(Path, "open", refuse)
    assert faults(given)[1] == f"HOLDFAST_MEMBER_KEY names {key}, which cannot be read: Permission denied"
    monkeypatch.setattr(Path, "is_file", refuse)
    assert faults(given)[1] == f"HOLDFAST_MEMBER_KEY names {key}, which cannot be read: Permission denied"


def test_links_between_machines_need_all_tls_files(
    development: dict[str, str], production: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "ca.pem").touch()
    with pytest.raises(SettingsFault) as fault:
        load_settings(development | {"HOLDFAST_MEMBER_CA": str(tmp_path / "ca.pem")})
    assert [line.split()[0] for line in fault.value.lines] == ["HOLDFAST_MEMBER_CERTIFICATE", "HOLDFAST_MEMBER_KEY"]
    with pytest.raises(SettingsFault) as fault:
        load_settings(production | {"HOLDFAST_MEMBER_ADDRESS": "10.0.0.5:7400"})
    assert len(fault.value.lines) == 3
    assert load_settings(development | {"HOLDFAST_MEMBER_ADDRESS": "127.0.0.1:7400"}).member_certificate is None
    with pytest.raises(SettingsFault, match="HOLDFAST_MEMBER_ADDRESS must be a host and a port"):
        load_settings(development | {"HOLDFAST_MEMBER_ADDRESS": "10.0.0.5"})


def test_a_cell_needs_its_number_and_the_list_that_has_it(development: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "cells.toml"
    table = (
        '[[cell]]\nnumber = 2\nplaces = "000-fff"\nemails = "000-fff"\nurl = "http://b"\noperators_url = "http://b"'
    )
    file.write_text(table)
    listed = development | {"HOLDFAST_CELLS": str(file)}
    assert [cell.number for cell in load_settings(listed | {"HOLDFAST_CELL": "2"}).cells] == [2]
    assert faults(listed) == ("HOLDFAST_CELL is missing; HOLDFAST_CELLS needs it",)
    alone = development | {"HOLDFAST_CELL": "2"}
    assert faults(alone) == ("HOLDFAST_CELLS is missing; HOLDFAST_CELL needs it",)
    assert faults(listed | {"HOLDFAST_CELL": "1"}) == (f"HOLDFAST_CELL is not the number of a cell in {file}",)
    file.write_text(table.replace("000-fff", "001-fff", 1))
    (line,) = [each for each in faults(listed | {"HOLDFAST_CELL": "2"}) if each.startswith("HOLDFAST_CELLS")]
    assert line == f"HOLDFAST_CELLS names {file}, which gives only 4095 of the 4096 places to a cell"


def test_the_log_level_is_one_of_four_in_any_case(development: dict[str, str]) -> None:
    assert load_settings({**development, "HOLDFAST_LOG_LEVEL": "WARNING"}).log_level == "warning"
    (line,) = faults({**development, "HOLDFAST_LOG_LEVEL": "loud"})
    assert line.startswith("HOLDFAST_LOG_LEVEL must be one of debug, info, warning, error, not 'loud'")


def test_a_secret_that_a_container_engine_mounts_may_have_any_mode(
    development: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "CONTAINER_SECRETS", tmp_path)
    for name in ("member.crt", "member.key", "ca.crt"):
        (tmp_path / name).touch(mode=0o644)
    given = {"CERTIFICATE": "member.crt", "KEY": "member.key", "CA": "ca.crt"}
    own = {f"HOLDFAST_MEMBER_{name}": str(tmp_path / file) for name, file in given.items()}
    assert load_settings({**development, **own}).member_key == tmp_path / "member.key"
