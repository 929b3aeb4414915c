"""A certificate authority and certificates of hosts, for tests of TLS."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Authority:
    """A CA in a folder."""

    folder: Path
    name: str = "ca"

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])
        certificate = (
            _builder(name, name, key, 1.0)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        _write(self.folder / f"{self.name}.key", self.folder / f"{self.name}.pem", key, certificate)

    @property
    def path(self) -> str:
        """Its certificate."""
        return str(self.folder / f"{self.name}.pem")

    def issue(self, host: str, days: float = 1.0) -> dict[str, str]:
        """Ray's variables for a host with a new certificate. `days`: validity; negative = expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        own = serialization.load_pem_private_key((self.folder / f"{self.name}.key").read_bytes(), None)
        assert isinstance(own, ec.EllipticCurvePrivateKey)
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        names: list[x509.GeneralName] = [x509.DNSName("localhost")]
        if host[0].isdigit():
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        certificate = (
            _builder(name, issuer, key, days)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(own, hashes.SHA256())
        )
        paths = self.folder / f"{host}.key", self.folder / f"{host}.pem"
        _write(*paths, key, certificate)
        return {
            "RAY_USE_TLS": "1",
            "RAY_TLS_SERVER_KEY": str(paths[0]),
            "RAY_TLS_SERVER_CERT": str(paths[1]),
            "RAY_TLS_CA_CERT": self.path,
        }


def _builder(
    name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 10 * _DAY)
        .not_valid_after(now + days * _DAY)
    )


def _write(key_path: Path, path: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
    form = serialization.PrivateFormat.PKCS8
    key_path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
