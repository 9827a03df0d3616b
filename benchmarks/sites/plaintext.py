"""What a recorded connection says: messages whole, without the frames of HTTP/2 and of gRPC, and headers."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _CONTINUATION = 0, 1, 9
_PADDED, _PRIORITY = 0x8, 0x20


@dataclass
class Spoken:
    """One direction of a connection."""

    site: str
    sent: bool
    """Whether the site says it."""
    raw: bytes
    headers: bytes = b""
    """All blocks of headers and of trailers, one after the other."""
    messages: list[bytes] = field(default_factory=list)
    """The bytes of each call."""

    @classmethod
    def read(cls, path: Path) -> "Spoken":
        """Read a record of the relay (RFC 9113 on frames, and gRPC over HTTP/2 on prefixes of messages)."""
        raw, (_, site, way) = path.read_bytes(), path.name.split("-")
        calls: defaultdict[int, bytearray] = defaultdict(bytearray)
        headers, at = bytearray(), len(_PREFACE) if raw.startswith(_PREFACE) else 0
        while at + 9 <= len(raw):
            size, kind, flags = int.from_bytes(raw[at : at + 3]), raw[at + 3], raw[at + 4]
            stream, payload = int.from_bytes(raw[at + 5 : at + 9]) & 0x7FFFFFFF, raw[at + 9 : at + 9 + size]
            at += 9 + size
            if kind in {_DATA, _HEADERS} and flags & _PADDED:
                payload = payload[1 : len(payload) - payload[0]]
            if kind == _DATA:
                calls[stream] += payload
            elif kind in {_HEADERS, _CONTINUATION}:
                headers += payload[5:] if kind == _HEADERS and flags & _PRIORITY else payload
        return cls(site, way == "sent", raw, bytes(headers), [_without_prefixes(bytes(data)) for data in calls.values() if data])


def _without_prefixes(data: bytes) -> bytes:
    """Join the parts of a message, each of which has a flag and its length before it."""
    parts, at = [], 0
    while at < len(data):
        if data[at] != 0:
            raise ValueError("a part of a message is compressed, so a search would find nothing in it")
        size = int.from_bytes(data[at + 1 : at + 5])
        parts.append(data[at + 5 : at + 5 + size])
        at += 5 + size
    return b"".join(parts)


def read_all(paths: Iterable[Path]) -> list[Spoken]:
    return [Spoken.read(path) for path in paths]
