"""docs/secrets.md names every secret, and its certificates are ones that members accept."""

from __future__ import annotations

import re
import ssl
import subprocess
from pathlib import Path

from holdfast.cluster.endpoints import mutual_tls
from holdfast.settings.checks import OWN_SECRETS

PAGE = (Path(__file__).parent.parent / "docs" / "secrets.md").read_text("utf-8")


def shake_hands(client: ssl.SSLObject, server: ssl.SSLObject) -> None:
    """Let both ends of a connection agree. Raises SSLError."""
    for _ in range(4):
        for end in (client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


def test_the_certificates_open_a_link_to_the_host_that_they_name(tmp_path: Path) -> None:
    block = re.search(r"^```sh\n(openssl req .*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert block is not None
    subprocess.run(["sh", "-eu", "-c", block[1]], cwd=tmp_path, check=True, capture_output=True)
    tls = mutual_tls(
        certificate=tmp_path / "member.crt", key=tmp_path / "member.key", authority=tmp_path / "members-ca.crt"
    )
    for host, is_named in (("10.0.0.5", True), ("10.0.0.6", False)):
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = tls.dial.wrap_bio(to_client, to_server, server_hostname=host)
        server = tls.accept.wrap_bio(to_server, to_client, server_side=True)
        reason = ""
        try:
            shake_hands(client, server)
        except ssl.SSLCertVerificationError as fault:
            reason = fault.verify_message
        assert (reason == "") == is_named, reason
        if is_named:
            assert server.getpeercert() == client.getpeercert() != {}


def test_every_secret_of_the_service_is_on_the_page() -> None:
    for name in (*OWN_SECRETS, "CARD_API_KEY", "CARD_WEBHOOK_SECRET", "S3_SECRET_ACCESS_KEY", "MEMBER_KEY"):
        assert re.search(rf"^\| [^|]*`{name}`", PAGE, re.MULTILINE), name
