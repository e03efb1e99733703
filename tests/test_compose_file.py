"""deploy/compose.yaml agrees with what ``holdfast init`` writes, with the settings, and with the other files."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.commands.init import MEMBERS, new_secrets
from holdfast.ledger.catalog.catalog import load_catalog
from holdfast.providers.media.kinds import kind_rules
from holdfast.settings.env_file import parse_env_file
from holdfast.settings.settings import Settings, load_locations, load_settings
from holdfast.settings.warnings import find_warnings

from .haproxy_process import CONTROL, MAP
from .tools import path_of

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
EXAMPLE = parse_env_file((DEPLOY / ".env.example").read_bytes()).variables
ANSWERS = {"PUBLIC_URL": EXAMPLE["HOLDFAST_PUBLIC_URL"], "SMTP_URL": "smtps://user:password@mail.example.com"}
PROFILES = ("sandbox", "monitoring")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of deploy, with the example as its .env and new secrets."""
    folder = tmp_path_factory.mktemp("compose") / "deploy"
    shutil.copytree(DEPLOY, folder)
    shutil.copy(DEPLOY / ".env.example", folder / ".env")
    (folder / "secrets").mkdir()
    for name, content in new_secrets("compose", ANSWERS).items():
        (folder / "secrets" / name).write_text(content)
    return folder


@pytest.fixture(scope="module")
def compose(folder: Path) -> dict[str, Any]:
    """The file as podman-compose reads it, with the variables of the example."""
    path_of("podman")
    options = [word for profile in PROFILES for word in ("--profile", profile)]
    done = subprocess.run(
        [path_of("podman-compose"), *options, "config"], cwd=folder, capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = yaml.safe_load(done.stdout)
    return found


def settings_of(compose: dict[str, Any], service: str, folder: Path) -> dict[str, str]:
    """The variables that a container of the service has, with its mounts' files in ``folder``."""
    described = compose["services"][service]
    variables: dict[str, str] = {**(EXAMPLE if "env_file" in described else {}), **described["environment"]}
    (folder / "catalog").mkdir(exist_ok=True)
    (folder / "catalog" / "catalog.toml").touch()
    here = {"/run/secrets": folder / "secrets", "/etc/holdfast": folder / "catalog"}
    for inside, outside in here.items():
        variables = {name: text.replace(inside, str(outside)) for name, text in variables.items()}
    return variables


@pytest.mark.parametrize("member", MEMBERS)
def test_production_accepts_the_settings_of_each_member_without_a_warning(
    compose: dict[str, Any], folder: Path, member: str
) -> None:
    variables = settings_of(compose, member, folder)
    (folder / "secrets" / "member.key").chmod(0o600)
    settings = load_settings(variables)
    assert settings.is_production
    assert list(find_warnings(settings)) == []
    assert settings.member_address == f"{member}:7400"
    networks = compose["services"]["haproxy"]["networks"]
    assert [str(each.network_address) for each in settings.trusted_proxies] == [networks["default"]["ipv4_address"]]
    assert (settings.ops_port, settings.processes) == (9000, 1)


def test_the_map_of_places_is_kept_with_the_database_alone(compose: dict[str, Any], folder: Path) -> None:
    assert load_locations(settings_of(compose, "places", folder)).database_url is not None
    assert compose["services"]["places"]["secrets"] == ["database_url"]


def test_every_variable_of_the_example_has_a_use() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    used = set(re.findall(r"\$\{([A-Z0-9_]+):-", text))
    own = {name for name in EXAMPLE if not name.startswith("HOLDFAST_")}
    assert own - used == {"COMPOSE_PROFILES"}
    assert set(re.findall(r"(?<!\$)\$\{?([A-Z0-9_]+)", text)) == used, "each has a default"
    given = {name.removeprefix("HOLDFAST_").removesuffix("_FILE") for name in EXAMPLE.keys() - own}
    assert given <= {name.upper() for name in Settings.__struct_fields__}


def test_every_file_and_secret_is_there(compose: dict[str, Any]) -> None:
    written = new_secrets("compose", ANSWERS).keys()
    named = {name: each["file"] for name, each in compose["secrets"].items()}
    assert named == {name: f"secrets/{name}" for name in written - {"tls-ca.crt"}}
    volumes = [each for service in compose["services"].values() for each in service.get("volumes", [])]
    mounted = {each.split(":")[0] for each in volumes if each.startswith(".")}
    assert {each for each in mounted if not (DEPLOY / each).exists()} == {EXAMPLE["CATALOG_FOLDER"]}
    used = {each["source"] if isinstance(each, dict) else each for each in _secrets(compose)}
    assert used == named.keys()
    assert {each.split(":")[0] for each in volumes if not each.startswith(".")} == compose["volumes"].keys()


def test_what_an_installation_adds_is_in_no_commit() -> None:
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"deploy/.env", "deploy/secrets/", "deploy/catalog/"} <= set(ignored)


def _secrets(compose: dict[str, Any]) -> list[Any]:
    return [each for service in compose["services"].values() for each in service.get("secrets", [])]


def test_haproxy_and_its_map_have_the_paths_of_the_shipped_configuration(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert services["places"]["command"][:5] == ["places", "--file", MAP, "--socket", CONTROL]
    volumes = {"places": str(Path(MAP).parent), "haproxy": str(Path(CONTROL).parent)}
    for name, path in volumes.items():
        assert f"{name}:{path}" in services["places"]["volumes"]
        assert any(each.split(":")[:2] == [name, path] for each in services["haproxy"]["volumes"])
    members = [services["haproxy"]["environment"][f"MEMBER_{n}"] for n in (1, 2, 3)]
    assert members == [*(f"{member}:8000" for member in MEMBERS), ""]
    addresses = [f"{name}:{services[name]['networks']['default']['ipv4_address']}" for name in MEMBERS]
    assert services["haproxy"]["extra_hosts"] == addresses


def test_haproxy_takes_the_members_of_its_environment(tmp_path: Path) -> None:
    text = (DEPLOY / "haproxy.cfg").read_text()
    backends = text[text.index("\nbackend ready") :].replace("use-server", "#")
    timeouts = "".join(f"    timeout {each} 1s\n" for each in ("client", "connect", "server"))
    frontend = f"frontend public\n    bind {tmp_path / 'public.sock'}\n    default_backend any\n"
    file = tmp_path / "haproxy.cfg"
    file.write_text(f"defaults\n    mode http\n{timeouts}{frontend}{backends}")
    shown = [path_of("haproxy"), "-c", "-f", str(file)]
    for members, is_valid in (
        ({"MEMBER_1": "127.0.0.1:1", "MEMBER_2": "127.0.0.1:2", "MEMBER_3": ""}, True),
        ({"MEMBER_1": "127.0.0.1:1", "MEMBER_2": "", "MEMBER_3": "no-such-host.invalid:1"}, False),
        ({}, True),
    ):
        done = subprocess.run(shown, env=members, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == is_valid, done.stderr


def test_the_services_start_after_what_they_need(compose: dict[str, Any]) -> None:
    needed = {
        name: {other: each["condition"].removeprefix("service_") for other, each in service["depends_on"].items()}
        for name, service in compose["services"].items()
        if "depends_on" in service
    }
    assert needed == {
        **{name: {"postgres": "healthy"} for name in (*MEMBERS, "places")},
        "haproxy": {"places": "healthy"},
        "grafana": {"prometheus": "started"},
    }
    waited_for = {other for each in needed.values() for other, condition in each.items() if condition == "healthy"}
    assert all("healthcheck" in compose["services"][name] for name in (*waited_for, *MEMBERS, "haproxy", "studio"))
    assert {service["restart"] for service in compose["services"].values()} == {"unless-stopped"}


def test_containers_of_the_service_have_no_privilege(compose: dict[str, Any]) -> None:
    for name in (*MEMBERS, "places", "studio"):
        service = compose["services"][name]
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["security_opt"] == ["no-new-privileges=true"]
    published = [str(port) for each in compose["services"].values() for port in each.get("ports", [])]
    open_to_all = [each for each in published if not each.startswith("127.0.0.1:")]
    assert open_to_all == [f"{EXAMPLE['HTTPS_PORT']}:443", f"{EXAMPLE['HTTP_PORT']}:80"]


def test_prometheus_scrapes_each_member_with_the_shipped_rules(compose: dict[str, Any], tmp_path: Path) -> None:
    volumes = compose["services"]["prometheus"]["volumes"]
    for each in volumes:
        source, path, *_ = each.split(":")
        if source.startswith("."):
            shutil.copy(DEPLOY / source, tmp_path / Path(path).name)
    [job] = yaml.safe_load((tmp_path / "prometheus.yml").read_text())["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"{member}:9000" for member in MEMBERS]}]
    command = [path_of("promtool"), "check", "config", str(tmp_path / "prometheus.yml")]
    subprocess.run(command, check=True, capture_output=True)


def test_grafana_finds_its_source_and_the_shipped_dashboard(compose: dict[str, Any]) -> None:
    """As its documentation describes these files; no test starts Grafana."""
    mounted = {each.split(":")[1]: each.split(":")[0] for each in compose["services"]["grafana"]["volumes"]}
    provisioning = "/etc/grafana/provisioning"
    source = yaml.safe_load((DEPLOY / mounted[f"{provisioning}/datasources/holdfast.yml"]).read_text())
    [prometheus] = source["datasources"]
    assert (source["apiVersion"], prometheus["type"], prometheus["url"]) == (
        1,
        "prometheus",
        "http://prometheus:9090",
    )
    provider = yaml.safe_load((DEPLOY / mounted[f"{provisioning}/dashboards/holdfast.yml"]).read_text())
    [dashboards] = provider["providers"]
    assert (provider["apiVersion"], dashboards["type"]) == (1, "file")
    [shipped] = [each for path, each in mounted.items() if path.startswith(f"{dashboards['options']['path']}/")]
    dashboard = json.loads((DEPLOY / shipped).read_text())
    [variable] = [each for each in dashboard["templating"]["list"] if each["type"] == "datasource"]
    assert variable["query"] == prometheus["type"]


def test_the_catalog_of_the_sandbox_sells_what_the_shipped_one_does(compose: dict[str, Any]) -> None:
    sandbox = load_catalog(DEPLOY / "sandbox" / "catalog.toml", kind_rules(), {})
    shipped = load_catalog(None, kind_rules(), {})
    assert sandbox.warnings == shipped.warnings
    [name] = sandbox.models
    assert sandbox.models[name].pricing == shipped.models[name].pricing
    studio = compose["services"]["studio"]
    assert studio["command"][0] == sandbox.providers["studio"].url
    assert studio["hostname"] == "studio"
