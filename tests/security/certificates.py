"""Certificates for one test: an authority, and what it has signed."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates, `<name>.pem` and `<name>.key` in its folder; its own is `ca.pem`."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _name(f"authority {name}")
        builder = _builder(self._subject, self._subject, self._key, ca=True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(builder.sign(self._key, SHA256()).public_bytes(Encoding.PEM))

    def sign(self, name: str, common_name: str | None = None, padding: int = 0) -> tuple[Path, Path]:
        """A certificate for 127.0.0.1, and its key; `padding` bytes make it larger than it need be."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(common_name or name), self._subject, key, ca=False)
        here = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
        builder = builder.add_extension(x509.SubjectAlternativeName(here), critical=False)
        if padding:
            filler = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.4.1.55555.1"), bytes(padding))
            builder = builder.add_extension(filler, critical=False)
        certificate_file, key_file = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        certificate_file.write_bytes(builder.sign(self._key, SHA256()).public_bytes(Encoding.PEM))
        key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return certificate_file, key_file

    def client_context(self, shown: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """For a client that believes this authority, and shows a certificate if it is asked for one."""
        context = ssl.create_default_context(cafile=str(self.file))
        if shown is not None:
            context.load_cert_chain(*shown)
        return context


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, ca: bool
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=7))
        .add_extension(x509.BasicConstraints(ca, None), critical=True)
    )
