"""A site that leaks on purpose, to see that the search would find it.

``python -m benchmarks.sites.leak HOST:PORT TLS PATTERNS LABEL`` sends all patterns many times over, in a message of several frames,
and a message that the coordinator refuses by repeating the label.
"""

import json
import sys
from pathlib import Path

import numpy as np

from dfact.errors import FederationError
from dfact.sites.messages import Message
from dfact.sites.transport import FRAME, GrpcConnection, Security

_AT_LEAST = 2 * FRAME


def copies(patterns: list[bytes]) -> int:
    """Return how many times each pattern is sent."""
    return 1 + _AT_LEAST // sum(map(len, patterns))


def leak(address: str, tls: Path, patterns: list[bytes], label: str) -> None:
    """Send the patterns, then the label as the kind of a message."""
    data = np.frombuffer(b"".join(patterns) * copies(patterns), np.uint8)
    with GrpcConnection(address, Security(*(tls / f"{name}.pem" for name in ("ca", "cert", "key")))) as connection:
        connection.call(Message({"kind": "alive"}, [data]))
        try:
            connection.call(Message({"kind": [label]}))
        except FederationError as error:
            print(f"refused: {error}")
            return
    raise SystemExit("the coordinator has accepted a message without a kind")


if __name__ == "__main__":
    leak(sys.argv[1], Path(sys.argv[2]), [bytes.fromhex(text) for text in json.loads(Path(sys.argv[3]).read_text())], sys.argv[4])
