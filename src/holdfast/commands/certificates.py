"""New certificates for a first start: an authority of their own signs them, and its key is not stored."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

NAME_CHARS_MAX = 64
_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


class Issued(NamedTuple):
    """PEM texts: the authority's certificate, the certificate that it signed, and that one's private key."""

    authority: str
    certificate: str
    key: str


def issue(name: str, hosts: Sequence[str], *, days: int) -> Issued:
    """Return a certificate for the hosts, DNS names or IP addresses, by a new authority of this name."""
    begun = datetime.now(UTC) - timedelta(hours=1)
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())

    def signed(subject: str, public_key: ec.EllipticCurvePublicKey, *extensions: x509.ExtensionType) -> str:
        builder = (
            x509.CertificateBuilder()
            .subject_name(_named(subject))
            .issuer_name(_named(name))
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begun)
            .not_valid_after(begun + timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            )
        )
        for each in extensions:
            builder = builder.add_extension(each, critical=isinstance(each, x509.BasicConstraints | x509.KeyUsage))
        certificate = builder.sign(authority_key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")

    usage = x509.KeyUsage(**dict.fromkeys(_USAGES, False) | {"key_cert_sign": True, "crl_sign": True})
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Issued(
        signed(name, authority_key.public_key(), x509.BasicConstraints(ca=True, path_length=0), usage),
        signed(hosts[0], key.public_key(), x509.BasicConstraints(ca=False, path_length=None), names),
        key_pem.decode("ascii"),
    )


def _named(name: str) -> x509.Name:
    """Return a name for people, cut where X.509 has no room for more; clients read the hosts' own extension."""
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:NAME_CHARS_MAX])])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
