"""Authorities and certificates that may be expired, not yet valid, or of another name."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

FILES = ("ca.pem", "cert.pem", "key.pem")


def _write(path: Path, *parts: bytes) -> Path:
    path.write_bytes(b"".join(parts))
    return path


def alternative_names(*names: str) -> Any:
    """Return the extension with these host names and IP addresses."""
    from cryptography import x509

    def general(name: str) -> Any:
        try:
            return x509.IPAddress(ip_address(name))
        except ValueError:
            return x509.DNSName(name)

    return x509.SubjectAlternativeName([general(name) for name in names])


@dataclass(frozen=True)
class Authority:
    """An authority that signs certificates: its own certificate in PEM, and its key."""

    pem: bytes
    key: Any

    @classmethod
    def make(cls) -> "Authority":
        pytest.importorskip("cryptography", reason="cryptography is not installed: pip install 'dfact[test]'")
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        return cls(_signed("authority", key, key, [], 0, authority=True), key)

    @classmethod
    def load(cls, folder: Path) -> "Authority":
        """Read ca.pem and ca-key.pem from a folder."""
        pytest.importorskip("cryptography", reason="cryptography is not installed: pip install 'dfact[test]'")
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        key = load_pem_private_key((folder / "ca-key.pem").read_bytes(), None)
        return cls((folder / "ca.pem").read_bytes(), key)

    def issue(self, folder: Path, *names: str, from_day: int = 0, common: str = "one machine", trusted: bytes = b"") -> Path:
        """Write ca.pem, cert.pem and key.pem to a new folder: a certificate for these names, valid for two days from a day on.

        ``trusted`` is the authority that ca.pem holds instead of this one.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        folder.mkdir()
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.load_pem_x509_certificate(self.pem)
        _write(folder / "ca.pem", trusted or self.pem)
        _write(folder / "cert.pem", _signed(common, key, self.key, list(names), from_day, issuer=issuer))
        _write(folder / "key.pem", key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return folder


def _signed(common: str, key: Any, signer: Any, names: list[str], from_day: int, *, authority: bool = False, issuer: Any = None) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding

    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])
    first = datetime.now(UTC) + timedelta(days=from_day) - timedelta(hours=1)
    builder = x509.CertificateBuilder(
        subject_name=subject,
        issuer_name=subject if issuer is None else issuer.subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=first,
        not_valid_after=first + timedelta(days=2),
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    if names:
        builder = builder.add_extension(alternative_names(*names), critical=False)
    return builder.sign(signer, SHA256()).public_bytes(Encoding.PEM)


def strangers(own: Authority, name: str, folder: Path) -> dict[str, Path]:
    """Write certificates that no member of a cluster may accept; all holders trust the cluster's own authority."""
    folder.mkdir(exist_ok=True)
    foreign = Authority.make()
    return {
        "foreign": foreign.issue(folder / "foreign", name, trusted=own.pem),
        "expired": own.issue(folder / "expired", name, from_day=-9),
        "not yet valid": own.issue(folder / "future", name, from_day=9),
        "misnamed": own.issue(folder / "misnamed", f"x{name}", "127.0.0.1", f"{name}.example"),
        "named as its subject alone": own.issue(folder / "unnamed", common=name),
    }
