"""Production's checks of the secrets in a catalog; development accepts any."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.ledger.catalog.catalog import CatalogFault
from holdfast.settings.settings import Settings, load_settings
from holdfast.wiring.provider_registry import ProviderRegistry, read_catalog

SECRETS = {
    "OPERATOR_TOKEN": "op-Zq3vN8xKfT2mWc7RbY5hJd9LsA4eGuPi",
    "CALLBACK_SECRET": "cb-Hy6tRw1QnMz8bVx3KdFj5sLp2GcEa9Uo",
    "SANDBOX_SECRET": "sb-Lk4jHg7fDs2aPo9iUy5tRe3wQz8xCv6B",
}
BOX = 'kind = "cog"\nurl = "https://box.example"\n'
STRONG = "Vt6bWm9qXc3nRz8kPd5hJf2sLg7yEa4T"
OTHER = "Gk4tVn8wQz2rMb7xYd5hLf9sJp3cEa6U"
MODEL = (
    '[[models]]\nid = "m"\nmodality = "image"\ntype = "async"\ncreated = "2026-11-01"\n'
    'pricing = { mode = "per_request", unit_price = "1" }\nupstream = { provider = "box" }\n'
    'input_schema = { type = "object" }\n'
)


def settings_of(folder: Path, providers: str, env: str) -> Settings:
    catalog = folder / "catalog.toml"
    catalog.write_text(providers + MODEL)
    given = {f"HOLDFAST_{name}": value for name, value in SECRETS.items()}
    return load_settings(
        {
            **given,
            "HOLDFAST_ENV": env,
            "HOLDFAST_DATABASE_URL": "postgresql://localhost/holdfast",
            "HOLDFAST_DATA_DIR": str(folder),
            "HOLDFAST_CATALOG": str(catalog),
        }
    )


@pytest.mark.parametrize(
    ("providers", "line"),
    [
        (f"[providers.box]\n{BOX}", "provider box: secret is missing"),
        (f'[providers.box]\n{BOX}secret = "changeme-changeme-changeme"\n', "provider box: secret is too weak"),
        (
            f'[providers.box]\n{BOX}secret = "an-example-the-box-shows-to-us"\n',
            "provider box: secret is an example",
        ),
        (
            f'[providers.box]\n{BOX}secret = "{STRONG}"\nprevious_secrets = ["secret-1"]\n',
            "provider box: secret is too",
        ),
        (f'[providers.box]\n{BOX}secret = "{STRONG}"\ntoken = "aaaaaaaa"\n', "provider box: token is too weak"),
        (
            f'[providers.box]\n{BOX}secret = "{SECRETS["CALLBACK_SECRET"]}"\n',
            "provider box: a secret is also a secret",
        ),
        (
            f'[providers.box]\n{BOX}secret = "{STRONG}"\n[providers.crate]\n{BOX}secret = "{STRONG}"\n',
            "provider crate: a secret is also one of provider box",
        ),
    ],
)
def test_production_refuses_weak_or_shared_catalog_secrets(tmp_path: Path, providers: str, line: str) -> None:
    with pytest.raises(CatalogFault) as caught:
        ProviderRegistry(settings_of(tmp_path, providers, "production"))
    assert len(caught.value.lines) == 1
    assert caught.value.lines[0].startswith(line)
    ProviderRegistry(settings_of(tmp_path, providers, "development"))


@pytest.mark.parametrize(
    "providers",
    [
        f'[providers.box]\n{BOX}secret = "{STRONG}"\ntoken = "{OTHER}"\n',
        f"[providers.box]\n{BOX}polls = true\n",
        '[providers.box]\nkind = "studio"\nurl = "https://box.example"\n',
        f'[providers.box]\nkind = "replicate"\ntoken = "r8_{OTHER}"\n',
    ],
)
async def test_production_accepts_strong_secrets_and_checks_reloads(tmp_path: Path, providers: str) -> None:
    registry = ProviderRegistry(settings_of(tmp_path, providers, "production"))
    version = registry.catalog.version
    settings_of(tmp_path, f'[providers.box]\n{BOX}secret = "secret-1"\n', "production")
    assert not await registry.reload()
    assert registry.catalog.version == version


async def test_a_catalog_whose_secrets_cannot_be_estimated_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = ProviderRegistry(settings_of(tmp_path, f'[providers.box]\n{BOX}secret = "{STRONG}"\n', "production"))
    version = registry.catalog.version
    settings_of(tmp_path, f'[providers.box]\n{BOX}secret = "Rb7xYd5hLf9sJp3cEa6UGk4tVn8wQz2m"\n', "production")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    assert not await registry.reload()
    assert registry.catalog.version == version


def test_a_file_with_secrets_that_everybody_may_read_or_write_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOX_TOKEN", "r8_0123456789")
    secret, catalog = tmp_path / "secret", tmp_path / "catalog.toml"
    secret.write_text(STRONG + "\n")
    catalog.write_text(f'[providers.box]\n{BOX}token_env = "BOX_TOKEN"\nsecret_file = "secret"\n{MODEL}')
    for mode in (0o644, 0o602):
        secret.chmod(mode)
        assert read_catalog(catalog).warnings == (
            f"{secret} has secrets, and every user of this machine can read or write it",
        )
    secret.chmod(0o640)
    assert read_catalog(catalog).warnings == ()
    assert read_catalog(catalog).providers["box"].token == "r8_0123456789"
