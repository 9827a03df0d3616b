"""Certificates of sites and coordinators, as their security."""

from pathlib import Path

from dfact.sites.transport import Security
from tests.tls.authority import FILES, Authority


def issue(authority: Authority, folder: Path, *names: str, from_day: int = 0, trusted: bytes = b"") -> Security:
    """Write a certificate for these names to a new folder, with a key that only its owner may read."""
    authority.issue(folder, *names, from_day=from_day, trusted=trusted)
    (folder / "key.pem").chmod(0o600)
    return Security(*(folder / name for name in FILES))
