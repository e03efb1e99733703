"""The manifests of deploy/kubernetes are valid by Kubernetes' schemas, and agree with the service and each other.

No cluster runs them.
"""

from __future__ import annotations

import contextlib
import re
import ssl
from pathlib import Path
from secrets import token_urlsafe
from typing import Any, Final

import pytest
import yaml
from kubernetes_validate.utils import validate

import holdfast
from holdfast.settings.settings import load_settings

from .certificates import Authority

ROOT: Final = Path(__file__).parent.parent
FOLDER: Final = ROOT / "deploy" / "kubernetes"
KUSTOMIZATION: Final[dict[str, Any]] = yaml.safe_load((FOLDER / "kustomization.yaml").read_text("utf-8"))
MANIFESTS: Final[list[dict[str, Any]]] = [
    manifest
    for name in KUSTOMIZATION["resources"]
    for manifest in yaml.safe_load_all((FOLDER / name).read_text("utf-8"))
]
BY_NAME: Final = {f"{each['kind']}/{each['metadata']['name']}": each for each in MANIFESTS}
MEMBERS: Final = BY_NAME["StatefulSet/holdfast"]["spec"]
POD: Final = MEMBERS["template"]["spec"]
[CONTAINER] = POD["containers"]
PORTS: Final = {each["name"]: each["containerPort"] for each in CONTAINER["ports"]}
SECRETS: Final = (
    "OPERATOR_TOKEN",
    "SERVER_KEY",
    "CALLBACK_SECRET",
    "SANDBOX_SECRET",
    "S3_ACCESS_KEY_ID",
    "S3_SECRET_ACCESS_KEY",
)
"""What the Secret has, beside the URLs of the database and the mail server."""


def test_every_file_is_part_of_it() -> None:
    assert sorted(each.name for each in FOLDER.iterdir()) == sorted(
        [*KUSTOMIZATION["resources"], "kustomization.yaml"]
    )


@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_the_manifests_are_valid(version: str) -> None:
    for manifest in MANIFESTS:
        validate(manifest, version, strict=True)


def test_production_accepts_the_settings(tmp_path: Path) -> None:
    given: dict[str, str] = dict(BY_NAME["ConfigMap/holdfast"]["data"])
    named = {"MEMBER_CERTIFICATE", "MEMBER_KEY", "MEMBER_CA", "CATALOG", "DATA_DIR"}
    mounted = [each["mountPath"] for each in CONTAINER["volumeMounts"]]
    for name in named:
        assert any(given[f"HOLDFAST_{name}"].startswith(path) for path in mounted), name
        (tmp_path / name).touch(mode=0o440)
        given[f"HOLDFAST_{name}"] = str(tmp_path / name)
    given["HOLDFAST_DATA_DIR"] = str(tmp_path)
    given |= {f"HOLDFAST_{name}": token_urlsafe(32) for name in SECRETS}
    given["HOLDFAST_DATABASE_URL"] = "postgresql://holdfast:secret@db/holdfast?sslmode=verify-full"
    given["HOLDFAST_SMTP_URL"] = "smtps://user:password@mail.example.com"
    [address] = [each["value"] for each in CONTAINER["env"] if each["name"] == "HOLDFAST_MEMBER_ADDRESS"]
    address = address.replace("$(POD_NAME)", "holdfast-0").replace("$(POD_NAMESPACE)", KUSTOMIZATION["namespace"])
    settings = load_settings({**given, "HOLDFAST_MEMBER_ADDRESS": address})
    assert settings.is_production
    assert (PORTS["http"], PORTS["operators"]) == (settings.port, settings.ops_port)
    pre_stop_s = float(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1])
    assert POD["terminationGracePeriodSeconds"] > pre_stop_s + 2 * settings.shutdown_s
    allowed = BY_NAME["NetworkPolicy/holdfast"]["spec"]["ingress"]
    [links] = [port for rule in allowed for port in rule["ports"] if "endPort" in port]
    assert links["port"] == PORTS["links"]
    assert links["endPort"] - links["port"] + 1 == 2 * settings.processes


def test_one_certificate_is_for_all_members(tmp_path: Path) -> None:
    """By the wildcard of docs/kubernetes.md, which OpenSSL accepts only above two further labels."""
    page = (ROOT / "docs" / "kubernetes.md").read_text("utf-8")
    [wildcard] = re.findall(r"`(\*\.\S+)`", page)
    authority = Authority(tmp_path)
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(authority.issue(wildcard))
    client = ssl.create_default_context(cafile=str(authority.path))
    name = f"holdfast-1.{MEMBERS['serviceName']}.{KUSTOMIZATION['namespace']}.svc"
    there, here = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(there, here, server_hostname=name),
        served.wrap_bio(here, there, server_side=True),
    ]
    for end in [*ends, *ends]:
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
    assert ends[0].version() == "TLSv1.3"


def test_everything_finds_the_pods() -> None:
    labels = MEMBERS["template"]["metadata"]["labels"]
    assert MEMBERS["selector"]["matchLabels"] == labels
    assert BY_NAME["PodDisruptionBudget/holdfast"]["spec"]["selector"]["matchLabels"] == labels
    assert BY_NAME["NetworkPolicy/holdfast"]["spec"]["podSelector"]["matchLabels"] == labels
    services = [each for each in MANIFESTS if each["kind"] == "Service"]
    for each in services:
        assert each["spec"]["selector"] == labels
        for port in each["spec"]["ports"]:
            assert port.get("targetPort", port["port"]) in {*PORTS, *PORTS.values()}
    assert MEMBERS["serviceName"] in [each["metadata"]["name"] for each in services]
    # What a policy or a probe calls a port is the container's name of it.
    probes = [CONTAINER[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")]
    assert {each["port"] for each in probes} == {"operators"}
    assert [each["path"] for each in probes] == ["/healthz", "/readyz", "/healthz"]


def test_the_pods_fulfil_the_restricted_standard() -> None:
    """And more: nothing is written outside the volumes, and no token of the cluster is in them."""
    assert BY_NAME["Namespace/holdfast"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert KUSTOMIZATION["namespace"] == "holdfast"
    pod, container = POD["securityContext"], CONTAINER["securityContext"]
    assert pod["runAsNonRoot"] is True
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert POD["automountServiceAccountToken"] is False
    # Else the names of services would be variables that the service takes for settings.
    assert POD["enableServiceLinks"] is False


def test_the_image_is_the_one_that_is_built() -> None:
    [image] = KUSTOMIZATION["images"]
    assert CONTAINER["image"] == image["name"]
    assert image["newTag"] == holdfast.__version__
    containerfile = (ROOT / "deploy" / "Containerfile").read_text("utf-8")
    [user] = re.findall(r"^USER (\d+)(?::\d+)?$", containerfile, re.MULTILINE)
    assert POD["securityContext"]["runAsUser"] == int(user)
