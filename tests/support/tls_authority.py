"""A certificate authority of one test, and servers' contexts with certificates that it signed."""

from __future__ import annotations

import datetime as dt
import ssl
from ipaddress import ip_address
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

if TYPE_CHECKING:
    from pathlib import Path


class TlsAuthority:
    """An authority with its certificate in ``ca_file``."""

    def __init__(self, folder: Path, *, name: str = "lab") -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.ca_file = folder / f"{name}.pem"
        self.ca_file.write_bytes(_pem(self._signed(self._key.public_key(), name, days=(-1, 1), host=None)))

    def server(self, host: str = "127.0.0.1", *, days: tuple[int, int] = (-1, 1)) -> ssl.SSLContext:
        """The context of a server at ``host``, an address or a name; ``days`` from now it is valid."""
        key = ec.generate_private_key(ec.SECP256R1())
        chain = self._folder / f"{self._name}-{host}-{days[1]}.pem"
        certificate = self._signed(key.public_key(), "server", days=days, host=host)
        chain.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + _pem(certificate)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        return context

    def _signed(
        self, key: ec.EllipticCurvePublicKey, name: str, *, days: tuple[int, int], host: str | None
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .issuer_name(_named(self._name))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + dt.timedelta(days=days[0]))
            .not_valid_after(now + dt.timedelta(days=days[1]))
            .add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
        )
        if host is not None:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(host)]), critical=False
            )
        return builder.sign(self._key, hashes.SHA256())


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
