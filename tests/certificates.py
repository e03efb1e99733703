"""An authority and the certificates that it signs, for tests of TLS."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

VALID = timedelta(days=2)
USAGES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


class Authority:
    """``path`` is the file of its certificate; certificates that it issues are files beside it."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = _named(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        builder = self._begun(self._name, self._key.public_key())
        certificate = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        usage = dict.fromkeys(USAGES, False) | {"key_cert_sign": True, "crl_sign": True}
        certificate = certificate.add_extension(x509.KeyUsage(**usage), critical=True)
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(_pem(certificate.sign(self._key, hashes.SHA256())))

    def issue(self, host: str) -> Path:
        """Return the file of a new certificate of ``host``, a DNS name or an IP address, and its private key."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            name: x509.GeneralName = x509.IPAddress(ip_address(host))
        except ValueError:
            name = x509.DNSName(host)
        builder = self._begun(_named(host), key.public_key())
        certificate = builder.add_extension(x509.SubjectAlternativeName([name]), critical=False)
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path = self._folder / f"{host}.{self.path.name}"
        path.write_bytes(secret + _pem(certificate.sign(self._key, hashes.SHA256())))
        return path

    def _begun(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        begun = datetime.now(UTC) - VALID / 2
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begun)
            .not_valid_after(begun + VALID)
            # What Python requires from 3.13 on.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
