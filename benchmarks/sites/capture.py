"""A capture of all packets between the hosts: ``python -m benchmarks.sites.capture FILE``, in the namespace of the switch."""

import ipaddress
import signal
import socket
import struct
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

READY = "Capturing."
_ALL, _SOL_PACKET, _STATISTICS, _BUFFER = 3, 263, 6, 1 << 27  # of linux/if_ether.h and linux/if_packet.h
_IPV4, _ARP, _IPV6, _TCP = 0x0800, 0x0806, 0x86DD, 6
_LENGTH = struct.Struct("<I")


def capture(path: Path) -> None:
    """Write each frame that enters the switch, until SIGTERM; then the number of frames that were lost."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL)) as packets, path.open("wb", buffering=1 << 20) as file:
        packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUFFORCE if hasattr(socket, "SO_RCVBUFFORCE") else 33, _BUFFER)
        packets.settimeout(0.2)
        print(READY, flush=True)
        quiet = False
        while not (stopped and quiet):
            try:
                frame, origin = packets.recvfrom(1 << 17)
            except TimeoutError:
                quiet = True
                continue
            if origin[2] != socket.PACKET_OUTGOING:  # which has entered by another port
                file.write(_LENGTH.pack(len(frame)) + frame)
        _, dropped = struct.unpack("II", packets.getsockopt(_SOL_PACKET, _STATISTICS, 8))
        print(f"lost {dropped}", flush=True)


@dataclass
class Traffic:
    """What a capture holds."""

    payload: int = 0
    """Bytes of TCP between the ends that are expected to talk."""
    frames: int = 0
    others: Counter[str] = field(default_factory=Counter)
    """Frames of everything else but ARP and the discovery of neighbours."""
    raw: bytes = b""

    @classmethod
    def read(cls, path: Path, expected: set[tuple[str, str]], port: int) -> "Traffic":
        """Read a capture; ``expected`` are pairs of a client and a server at the port."""
        raw, found, at = path.read_bytes(), cls(), 0
        found.raw = raw
        while at < len(raw):
            (size,) = _LENGTH.unpack_from(raw, at)
            frame = memoryview(raw)[at + _LENGTH.size : at + _LENGTH.size + size]
            at += _LENGTH.size + size
            found.frames += 1
            kind = int.from_bytes(frame[12:14])
            if kind == _IPV4 and frame[23] == _TCP:
                source, target, ports, length = _tcp(frame)
                if ((source, target) in expected and ports[1] == port) or ((target, source) in expected and ports[0] == port):
                    found.payload += length
                else:
                    found.others[f"TCP {source}:{ports[0]} to {target}:{ports[1]}"] += 1
            elif kind == _IPV6 and frame[20] in {0, 58}:  # multicast and neighbours' discovery
                continue
            elif kind != _ARP:
                found.others[f"protocol {kind:#x}"] += 1
        return found


def _tcp(frame: Any) -> tuple[str, str, tuple[int, int], int]:
    """Return both addresses, both ports, and the length of the payload of a TCP segment."""
    header = (frame[14] & 15) * 4
    tcp = frame[14 + header :]
    length = int.from_bytes(frame[16:18]) - header - (tcp[12] >> 4) * 4
    source, target = (str(ipaddress.IPv4Address(bytes(frame[start : start + 4]))) for start in (26, 30))
    return source, target, (int.from_bytes(tcp[:2]), int.from_bytes(tcp[2:4])), length


if __name__ == "__main__":
    capture(Path(sys.argv[1]))
