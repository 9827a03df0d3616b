"""The ledger of a site: what it must remember over all runs and restarts so that many permitted answers do not add up to a row."""

import hashlib
import hmac
import json
import os
import secrets
from os import PathLike
from pathlib import Path
from typing import Any

from dfact.errors import FederationError, StoreError


class Ledger:
    """A file beside the log of a site, and a key that never leaves; without a path, both last as long as the program.

    It holds the digests of the contracts that the site has been shown, and the number of its refusals: each is an answer of one bit.
    """

    def __init__(self, log: str | PathLike[str] | None) -> None:
        self._path = None if log is None else Path(log).with_suffix(".ledger.json")
        self._key_path = None if log is None else Path(log).with_suffix(".key")
        self._key: bytes | None = None
        self._found: dict[str, Any] = self._read()

    @property
    def key(self) -> bytes:
        """The key of this site, which is drawn when it is first needed."""
        if self._key is None:
            self._key = _read_key(self._key_path)
        return self._key

    def keyed(self, text: str) -> str:
        """Return a digest by which guesses at the data cannot be checked without the key."""
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()

    def pin(self, contract: str, most: int) -> None:
        """Note the digest of a contract; raise FederationError if the site has been shown ``most`` others."""
        known = self._found.setdefault("contracts", [])
        if contract in known:
            return
        if len(known) >= most:
            found = f"the contract is another than the {most} that this site has been shown first"
            raise FederationError(f"{found}, expected one of max_contracts={most} of the policy; raise it if the new one is right")
        known.append(contract)
        self._write()

    def require_refusals_left(self, most: int) -> None:
        """Raise FederationError if the site has refused ``most`` times."""
        if self._found.get("refusals", 0) >= most:
            found = f"this site has refused max_refusals={most} times, and each refusal tells one bit"
            raise FederationError(f"{found}; its data office may read the log, and raise it in the policy")

    def count_refusal(self) -> None:
        """Note a refusal that the coordinator reads."""
        self._found["refusals"] = self._found.get("refusals", 0) + 1
        self._write()

    def _read(self) -> dict[str, Any]:
        if self._path is None or not self._path.exists():
            return {}
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            if not isinstance(found, dict):
                raise TypeError("it is another kind of JSON")
        except (OSError, ValueError, TypeError) as error:
            raise StoreError(f"the ledger {self._path} is damaged ({error}), so nothing leaves; restore it from a backup") from error
        return found

    def _write(self) -> None:
        if self._path is None:
            return
        written = self._path.with_suffix(".new")
        try:
            written.write_text(json.dumps(self._found), encoding="utf-8")
            written.replace(self._path)
        except OSError as error:
            raise StoreError(f"the ledger {self._path} cannot be written ({error}), so nothing leaves") from error


def _read_key(path: Path | None) -> bytes:
    """Return the key of a site from its file, which is written if there is none, for its owner alone."""
    if path is None:
        return secrets.token_bytes(32)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    except FileExistsError:
        pass
    except OSError as error:
        raise StoreError(f"the key {path} cannot be written ({error}), so nothing leaves") from error
    try:
        return bytes.fromhex(path.read_text())
    except (OSError, ValueError) as error:
        raise StoreError(f"the key {path} cannot be read ({error}), so nothing leaves; restore it from a backup") from error
