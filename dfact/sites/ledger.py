"""The ledger of a site: what it must remember over all runs and restarts so that many permitted answers do not add up to a row."""

import hashlib
import hmac
import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.errors import FederationError, StoreError
from dfact.sites.policy import WithheldError

_TABLES = (
    "contracts (digest TEXT PRIMARY KEY)",
    "notes (name TEXT PRIMARY KEY, value)",
    "sums (digest BLOB PRIMARY KEY, numbers REAL) WITHOUT ROWID",
    "row_sets (what TEXT, digests BLOB)",
    "settings (model TEXT, chosen TEXT, PRIMARY KEY (model, chosen))",
)
_BUSY = 60.0  # seconds for which a program waits for another one with the same ledger
_DIGEST, _KEY_BYTES = 8, 32  # bytes
_ROUNDING = 1e-9


class Ledger:
    """A database beside the log of a site, and a key that never leaves; without a path, both last as long as the program.

    It holds the digests of the contracts that the site has been shown; the number of its refusals, each an answer of one bit; the
    settings of its fits; keyed digests of the rows of each set on which results rest; and those of the arrays that have left, with their
    numbers about an item. What it notes is in the file before anything leaves. Programs with the same ledger wait for one another.
    """

    def __init__(self, log: str | PathLike[str] | None) -> None:
        self._path = None if log is None else Path(log).with_suffix(".ledger")
        self._key_path = None if log is None else Path(log).with_suffix(".key")
        self._key: bytes | None = None
        self._lock = threading.Lock()
        # A site without a log is served by another thread than the one that made it.
        self._memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False) if log is None else None

    @property
    def key(self) -> bytes:
        """The key of this site, which is drawn when it is first needed."""
        if self._key is None:
            self._key = _read_key(self._key_path)
        return self._key

    def keyed(self, text: str) -> str:
        """Return a digest by which guesses at the data cannot be checked without the key."""
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """Read and change the ledger, while no other program does; an error changes nothing."""
        try:
            with self._lock, self._database() as database, database:
                database.execute("BEGIN IMMEDIATE")
                for table in _TABLES:
                    database.execute(f"CREATE TABLE IF NOT EXISTS {table}")
                key = hmac.digest(self.key, b"key of the ledger", "sha256")
                database.execute("INSERT OR IGNORE INTO notes VALUES ('key', ?)", [key])
                if _note(database, "key") != key:
                    raise StoreError(f"the key {self._key_path} is not that of the ledger {self._path}, so nothing leaves; restore both")
                yield database
        except sqlite3.Error as error:
            found = f"the ledger {self._path} cannot be read or written ({error})"
            raise StoreError(f"{found}, so nothing leaves; restore it from a backup if it is damaged") from error

    def _database(self) -> "closing[sqlite3.Connection] | nullcontext[sqlite3.Connection]":
        if self._memory is not None:
            return nullcontext(self._memory)
        assert self._path is not None, "a ledger without a path is in memory"
        return closing(sqlite3.connect(self._path, timeout=_BUSY, isolation_level=None))

    def pin(self, contract: str, most: int) -> None:
        """Note the digest of a contract; raise FederationError if the site has been shown ``most`` others."""
        with self._change() as database:
            known = {digest for (digest,) in database.execute("SELECT digest FROM contracts")}
            if contract not in known and len(known) >= most:
                found = f"the contract is another than the {most} that this site has been shown first"
                raise FederationError(f"{found}, expected one of max_contracts={most} of the policy; raise it if the new one is right")
            database.execute("INSERT OR IGNORE INTO contracts VALUES (?)", [contract])

    def require_refusals_left(self, most: int) -> None:
        """Raise FederationError if the site has refused ``most`` times."""
        with self._change() as database:
            refusals = _note(database, "refusals") or 0
        if refusals >= most:
            found = f"this site has refused max_refusals={most} times, and each refusal tells one bit"
            raise FederationError(f"{found}; its data office may read the log, and raise it in the policy")

    def count_refusal(self) -> None:
        """Note a refusal that the coordinator reads."""
        with self._change() as database:
            database.execute("INSERT INTO notes VALUES ('refusals', 1) ON CONFLICT (name) DO UPDATE SET value = value + 1")

    @property
    def spent(self) -> float:
        """Numbers about each item that have left, in all runs."""
        with self._change() as database:
            return _spent(database)

    def pin_blocks(self, count: int) -> None:
        """Note the number of blocks of rows in cross-validation; raise FederationError if an earlier run had another.

        A few rows could be in a block of one and not of the other.
        """
        with self._change() as database:
            database.execute("INSERT OR IGNORE INTO notes VALUES ('blocks', ?)", [count])
            first = _note(database, "blocks")
        if first != count:
            raise FederationError(f"n_blocks has {count} blocks of rows, expected {first}, as this site has drawn in an earlier selection")

    def pin_settings(self, model: str, chosen: Iterable[Mapping[str, Any]], most: int) -> None:
        """Note the parameters of fits that decide whose factor is at a bound; raise FederationError if they are more than ``most`` sets."""
        with self._change() as database:
            known = [first for (first,) in database.execute("SELECT chosen FROM settings WHERE model = ?", [model])]
            for each in chosen:
                text = json.dumps(each, sort_keys=True)
                if text in known:
                    continue
                if len(known) >= most:
                    found = f"{model} is to be fitted with {text}, and has been with {' and '.join(known) or 'nothing'}"
                    raise FederationError(
                        f"{found}: fits that differ in these could tell of a person, expected max_settings={most} of the policy; repeat "
                        "an earlier one, or ask the data office to raise it"
                    )
                database.execute("INSERT INTO settings VALUES (?, ?)", [model, text])
                known.append(text)

    def spend(self, arrays: Iterable[tuple[NDArray[np.generic], int]], most: float) -> float:
        """Note arrays that are to leave, each of a number of items, and return the numbers about an item that have left with them.

        Raises WithheldError if these are more than ``most``. An array that has left before tells nothing new, and does not count again.
        """
        with self._change() as database:
            for array, n_items in arrays:
                about = f"{array.dtype} {array.shape}".encode() + array.tobytes()
                digest = hmac.digest(self.key, about, "sha256")[:_DIGEST]
                database.execute("INSERT OR IGNORE INTO sums VALUES (?, ?)", [digest, numbers_about_an_item(array, n_items)])
            total = _spent(database)
            if total > most * (1 + _ROUNDING):
                told = "more numbers about an item would have left than max_numbers of the policy allows"
                raise WithheldError(told, f"{total:.0f}, expected at most {most:.0f}; fit fewer components, more rows, or raise it")
        return total

    def admit(self, what: str, digests: NDArray[np.uint64], least: int) -> None:
        """Note a set of rows on which results will rest, by a keyed digest of each row.

        Raises WithheldError if it differs from an earlier set by at least one row and fewer than ``least``: the difference of the results
        would be that of these rows.
        """
        rows = np.sort(digests.astype("<u8"))
        with self._change() as database:
            for name, earlier in database.execute("SELECT what, digests FROM row_sets"):
                gone, new = rows_apart(np.frombuffer(earlier, "<u8"), rows)
                if not gone and not new:
                    return
                if max(gone, new) < least:
                    told = (
                        f"the rows differ from those of an earlier result in fewer than min_rows={least} of the policy, and more than none"
                    )
                    raise WithheldError(
                        told, f"{new} rows of {what} are new, and {gone} of {name} are gone; wait for more, or leave them out"
                    )
            database.execute("INSERT INTO row_sets VALUES (?, ?)", [what, rows.tobytes()])


def _note(database: sqlite3.Connection, name: str) -> Any:
    found = database.execute("SELECT value FROM notes WHERE name = ?", [name]).fetchone()
    return None if found is None else found[0]


def _spent(database: sqlite3.Connection) -> float:
    return float(database.execute("SELECT total(numbers) FROM sums").fetchone()[0])


def numbers_about_an_item(array: NDArray[np.generic], n_items: int) -> float:
    """Return how many numbers about each item an array holds.

    Entries by item, or by pair of items, are shared among the items; so are others, which depend on all. Half of a table of pairs has
    each number about two items. A matrix of the pairs that is the same for all second items has one number about an item, as do numbers of
    rows without missing answers.
    """
    if array.shape == (n_items, n_items) and ((array == array[:1]).all() or (array == array[:, :1]).all()):
        return 1.0
    shared = array.ndim > 1 or array.size <= n_items
    return array.size / n_items if shared else 2 * array.size / n_items


def rows_apart(earlier: NDArray[np.uint64], rows: NDArray[np.uint64]) -> tuple[int, int]:
    """Return how many digests the first has and the second lacks, and conversely; each as often as it occurs. Both are sorted."""
    if np.array_equal(earlier, rows):
        return 0, 0
    values, codes = np.unique(np.concatenate([earlier, rows]), return_inverse=True)
    change = np.bincount(codes[len(earlier) :], minlength=len(values)) - np.bincount(codes[: len(earlier)], minlength=len(values))
    return int(-change[change < 0].sum()), int(change[change > 0].sum())


_PROCESS_KEY = secrets.token_bytes(_KEY_BYTES)
"""The key of sites without a log, which a site that is started again in this process must find again."""


def _read_key(path: Path | None) -> bytes:
    """Return the key of a site from its file, which is written if there is none, for its owner alone."""
    if path is None:
        return _PROCESS_KEY
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(_KEY_BYTES))
    except FileExistsError:
        pass
    except OSError as error:
        raise StoreError(f"the key {path} cannot be written ({error}), so nothing leaves") from error
    try:
        key = bytes.fromhex(path.read_text())
    except (OSError, ValueError) as error:
        raise StoreError(f"the key {path} cannot be read ({error}), so nothing leaves; restore it from a backup") from error
    if len(key) != _KEY_BYTES:
        raise StoreError(f"the key {path} has {len(key)} bytes, expected {_KEY_BYTES}, so nothing leaves; restore it from a backup")
    return key
