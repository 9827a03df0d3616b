"""The log of a site: every array that leaves or comes in, in a file that the data office can read, and whose lines form a chain."""

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any

from dfact.errors import StoreError
from dfact.lazy import pd
from dfact.sites.messages import Message

START = hashlib.sha256(b"dfact site log").hexdigest()
"""The digest before the first line of a log."""
_CHAIN = "chain"
_TAIL = 1 << 20  # bytes that are read for the last line; one with the labels of many thousands of items is longer, and read with all others


class SiteLog:
    """A file with a line of JSON for each message that leaves or comes in; without a path, nothing is written.

    A line has the time (UTC), the run, the step, the way ("out" or "in"), the peer, what is sent, the number of rows behind it, the SHA-256
    digest of the message's fields as JSON, and for each array its type, its shape, its bytes and its SHA-256 digest. The fields themselves,
    such as labels, levels, texts and the task with its parameters, are in it too, unless the message holds sums: these have no others than
    the names of pass and sums. It is written before the message leaves. Signs of life and questions for the next run, which hold nothing of
    the data, have no line. Each line ends with a digest of its own content and of the digest of the line before.
    """

    def __init__(self, path: str | PathLike[str] | None) -> None:
        self._path = None if path is None else Path(path)
        self._lock = threading.Lock()
        self._last: str | None = None
        """Digest of the last line; None before it has been read."""
        self.run = ""
        self.peer = ""
        """Fingerprint of the certificate of the coordinator."""

    def record(self, message: Message, rows: int = 0, *, way: str = "out", details: Mapping[str, Any] | None = None) -> None:
        """Write the line of a message, before it leaves or as it has come in, with further ``details``."""
        if self._path is None:
            return
        arrays = [
            {
                "type": str(array.dtype),
                "shape": list(array.shape),
                "bytes": array.nbytes,
                "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
            }
            for array in message.arrays
        ]
        fields = message.fields
        step = fields["kind"] == "step"
        inner = fields["message"] if step else fields
        sums = inner.get("sums")
        entry = {
            "way": way,
            "peer": self.peer,
            "step": fields.get("step", 0),
            "what": inner.get("pass", inner["kind"]),
            "sums": sums["type"] if isinstance(sums, Mapping) else inner["kind"],
            "rows": rows,
            "arrays": arrays,
            "sha256": hashlib.sha256(json.dumps(fields, ensure_ascii=False).encode()).hexdigest(),
            **(details or {}),
        }
        self.write(entry if step or isinstance(sums, Mapping) else {**entry, "fields": fields})

    def write(self, entry: Mapping[str, Any]) -> None:
        """Write a line with the time and the run."""
        if self._path is None:
            return
        content = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "run": self.run, **entry}
        try:
            # Without a buffer the line is one call of the system, so that a reader never sees half of it.
            with self._lock, self._path.open("a+b", buffering=0) as file:
                torn = b""
                if self._last is None:
                    self._last, torn = _end(file, self._path)
                self._last = _chained(self._last, content)
                line = json.dumps({**content, _CHAIN: self._last}, ensure_ascii=False)
                file.write(torn + line.encode() + b"\n")
        except OSError as error:
            raise StoreError(f"the log {self._path} cannot be written ({error}), so nothing leaves") from error


def _end(file: Any, path: Path) -> tuple[str, bytes]:
    """Return the digest of the last complete line of a log, and what must precede the next one: a line end if a crash has cut the last."""
    size = file.seek(0, 2)
    file.seek(max(0, size - _TAIL))
    text = file.read()
    if b"\n" not in text[:-1] and size > _TAIL:
        file.seek(0)
        text = file.read()
    for line in reversed(text.split(b"\n")):
        found = _parsed(line)
        if found is not None and _CHAIN in found:
            return str(found[_CHAIN]), b"" if text.endswith(b"\n") else b"\n"
    if text.strip():
        raise StoreError(f"the log {path} has no line of this version of dfact, so nothing leaves; move it away, or choose another (--log)")
    return START, b""


def _chained(before: str, content: Mapping[str, Any]) -> str:
    return hashlib.sha256(f"{before}\n{json.dumps(content, ensure_ascii=False)}".encode()).hexdigest()


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def read_log(path: str | PathLike[str]) -> list[dict[str, Any]]:
    """Return the entries of a log. A line that a crash has cut is an entry that says so; any other damage raises StoreError.

    A crash cuts the last line of a program. One that was started later goes on after it.
    """
    lines, entries = _lines(path), list[dict[str, Any]]()
    for number, line in enumerate(lines, start=1):
        found = _parsed(line)
        if found is None and not line.startswith(b"{"):
            raise StoreError(f"line {number} of the log {path} is damaged, expected JSON")
        entries.append({"what": f"line {number} was cut", "sums": "unknown", "rows": 0} if found is None else found)
    return entries


def verify_log(path: str | PathLike[str]) -> tuple[int, list[int], str]:
    """Return the number of complete lines of a log, the numbers of those that a crash has cut, and the digest of the last line.

    Raises StoreError with the number of the first line that was altered, or before which one was removed. Lines that were removed at the
    end leave a chain that is complete: compare the number of lines and the last digest with those noted elsewhere.
    """
    last, complete, cut = START, 0, list[int]()
    for number, line in enumerate(_lines(path), start=1):
        found = _parsed(line)
        if found is None:
            cut.append(number)
            continue
        stated = found.pop(_CHAIN, None)
        if stated != _chained(last, found):
            raise StoreError(f"line {number} of the log {path} was altered, or one before it was removed; restore the log from a backup")
        last, complete = stated, complete + 1
    return complete, cut, last


def _lines(path: str | PathLike[str]) -> list[bytes]:
    try:
        return Path(path).read_bytes().splitlines()
    except OSError as error:
        raise StoreError(f"the log {path} cannot be read: {error}") from error


def summarize(entries: Sequence[Mapping[str, Any]]) -> "pd.DataFrame":
    """Summarize what has left: for each run and kind of message, the number of messages, arrays and bytes, and the fewest rows behind one.

    The effective rows of sums count if they are fewer.
    """
    table: dict[tuple[str, str, str], list[int]] = {}
    for entry in entries:
        if entry.get("way") == "in":
            continue
        arrays = entry.get("arrays", ())
        key = str(entry.get("run", "")), str(entry.get("what", "")), str(entry.get("sums", ""))
        rows = int(entry.get("effective_rows", entry.get("rows", 0)))
        found = table.setdefault(key, [0, 0, 0, rows])
        found[0] += 1
        found[1] += len(arrays)
        found[2] += sum(int(array["bytes"]) for array in arrays)
        found[3] = min(found[3], rows)
    index = pd.MultiIndex.from_tuples(list(table), names=["run", "what", "sums"])
    return pd.DataFrame(list(table.values()), index=index, columns=["messages", "arrays", "bytes", "fewest_rows"])
