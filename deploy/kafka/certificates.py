"""Certificates for a secured cluster: an authority, the nodes' key, a client's key, and an authority that nobody
trusts.

Owns making them, and the files they lie in. They guard nothing but tests: keys are not encrypted, and they are valid
for a year.
"""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["CLIENT_NAME", "SERVER_NAME", "Certificates", "make"]

SERVER_NAME = "localhost"
CLIENT_NAME = "bus"
_DAY = datetime.timedelta(days=1)
_VALID = 365 * _DAY


@dataclass(frozen=True)
class Certificates:
    """The files, all PEM; keys are PKCS#8."""

    folder: Path

    @property
    def authority(self) -> Path:
        """The certificate that signed the others; what clients trust."""
        return self.folder / "ca.pem"

    @property
    def untrusted(self) -> Path:
        """An authority that signed nothing here: who trusts it alone must be refused."""
        return self.folder / "untrusted-ca.pem"

    @property
    def keystore(self) -> Path:
        """The nodes' key and chain in one file, as Kafka reads them."""
        return self.folder / "keystore.pem"

    @property
    def client_certificate(self) -> Path:
        """Who connects with it is User:CN=bus."""
        return self.folder / "client.pem"

    @property
    def client_key(self) -> Path:
        """The key of the client's certificate."""
        return self.folder / "client.key"


@dataclass(frozen=True)
class _Signed:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)


def make(folder: Path) -> Certificates:
    """Make what is missing in *folder*; certificates that are there stay, for clients have them."""
    files = Certificates(folder)
    if files.client_key.exists():
        return files
    folder.mkdir(parents=True, exist_ok=True)
    authority, server, client = _authority("sealbus test authority"), _key(), _key()
    signed_server = _issue(SERVER_NAME, server, authority)
    signed_client = _issue(CLIENT_NAME, client, authority)
    _write(files.authority, authority.pem)
    _write(files.untrusted, _authority("an authority nobody trusts").pem)
    _write(files.keystore, signed_server.key_pem + signed_server.pem + authority.pem)
    _write(files.client_certificate, signed_client.pem)
    _write(files.client_key, signed_client.key_pem)  # last: its presence says that all are there
    return files


def _write(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _authority(name: str) -> _Signed:
    key = _key()
    builder = _builder(name, name, key).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    builder = builder.add_extension(usage, critical=True)
    return _Signed(key, builder.sign(key, hashes.SHA256()))


def _issue(name: str, key: ec.EllipticCurvePrivateKey, authority: _Signed) -> _Signed:
    issuer = authority.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    names = x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = _builder(name, str(issuer), key)
    builder = builder.add_extension(names, critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False
    )
    return _Signed(key, builder.sign(authority.key, hashes.SHA256()))


def _builder(name: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
