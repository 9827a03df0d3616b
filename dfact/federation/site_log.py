"""The log of a site: every array that leaves, in a file that the data office can read."""

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any

from dfact.errors import StoreError
from dfact.federation.messages import Message
from dfact.lazy import pd


class SiteLog:
    """A file with a line of JSON for each message that leaves; without a path, nothing is written.

    A line has the time (UTC), the run, the step, what is sent, the number of rows behind it, the SHA-256 digest of the message's fields
    as JSON, and for each array its type, its shape, its bytes and its SHA-256 digest. The fields themselves, such as labels, levels and
    texts, are in it too, unless the message holds sums: these have no others than the names of pass and sums. It is written before the
    message leaves. Signs of life and questions for the next run, which hold nothing of the data, have no line.
    """

    def __init__(self, path: str | PathLike[str] | None) -> None:
        self._path = None if path is None else Path(path)
        self._lock = threading.Lock()
        self.run = ""

    def record(self, message: Message, rows: int) -> None:
        """Write the line of a message, as it leaves."""
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
            "step": fields.get("step", 0),
            "what": inner.get("pass", inner["kind"]),
            "sums": sums["type"] if isinstance(sums, Mapping) else inner["kind"],
            "rows": rows,
            "arrays": arrays,
            "sha256": hashlib.sha256(json.dumps(fields, ensure_ascii=False).encode()).hexdigest(),
        }
        self.write(entry if step else {**entry, "fields": fields})

    def write(self, entry: Mapping[str, Any]) -> None:
        """Write a line with the time and the run."""
        if self._path is None:
            return
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "run": self.run, **entry}, ensure_ascii=False)
        try:
            # Without a buffer the line is one call of the system, so that those of several processes do not mix.
            with self._lock, self._path.open("ab", buffering=0) as file:
                file.write(f"{line}\n".encode())
        except OSError as error:
            raise StoreError(f"the log {self._path} cannot be written ({error}), so nothing leaves") from error


def read_log(path: str | PathLike[str]) -> list[dict[str, Any]]:
    """Return the entries of a log; raise StoreError if a line is damaged."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise StoreError(f"the log {path} cannot be read: {error}") from error
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            entries.append(json.loads(line))
        except ValueError as error:
            raise StoreError(f"line {number} of the log {path} is damaged, expected JSON") from error
    return entries


def summarize(entries: Sequence[Mapping[str, Any]]) -> "pd.DataFrame":
    """Summarize a log: for each run and kind of message, the number of messages, arrays and bytes, and the fewest rows behind one."""
    table: dict[tuple[str, str, str], list[int]] = {}
    for entry in entries:
        arrays = entry.get("arrays", ())
        key = str(entry.get("run", "")), str(entry.get("what", "")), str(entry.get("sums", ""))
        found = table.setdefault(key, [0, 0, 0, int(entry.get("rows", 0))])
        found[0] += 1
        found[1] += len(arrays)
        found[2] += sum(int(array["bytes"]) for array in arrays)
        found[3] = min(found[3], int(entry.get("rows", 0)))
    index = pd.MultiIndex.from_tuples(list(table), names=["run", "what", "sums"])
    return pd.DataFrame(list(table.values()), index=index, columns=["messages", "arrays", "bytes", "fewest_rows"])
