"""The owner of a temporary folder, as part of the folder's name: the process that made it.

Several machines may share the folder TMPDIR, and locks of files do not hold on all network file systems. The name therefore contains
the host, the boot id, the PID namespace, the process id and the start time of the process. ``dfact/batch/manifests/node-entrypoint``
makes such names too.
"""

import os
import socket
from contextlib import suppress
from functools import cache
from pathlib import Path

_PROC = Path("/proc")


@cache
def host() -> str:
    """Return the name of this host with its boot and the namespace in which its process ids hold, joined by dots."""
    boot, pid_namespace = "0", "0"
    with suppress(OSError):  # other systems than Linux have none of the two
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        pid_namespace = "".join(filter(str.isdigit, (_PROC / "self/ns/pid").readlink().name))
    return f"{socket.gethostname()}.{boot}.{pid_namespace}"


def process_start(pid: int) -> str | None:
    """Return when a process of this host began, as text that differs from any other process with the same id; None if there is none."""
    if _PROC.is_dir():
        try:
            return (_PROC / str(pid) / "stat").read_text().rpartition(") ")[2].split()[19]  # ticks since the boot
        except (FileNotFoundError, ProcessLookupError):
            return None
    import psutil

    try:
        return str(round(psutil.Process(pid).create_time() * 100))
    except psutil.NoSuchProcess:
        return None


def owner_tag() -> str:
    """Return this process's part of the name of a temporary folder."""
    pid = os.getpid()
    return f"{host()}.{pid}.{process_start(pid)}"


def is_stale(name: str) -> bool:
    """Return whether a folder with this name, ``…-OWNER.RANDOM``, belongs to a process of this host that has ended."""
    if f"-{host()}." not in name:
        return False  # another host's, or of an earlier boot: nothing here tells whether its owner lives
    pid, _, rest = name.partition(f"-{host()}.")[2].partition(".")
    start = rest.partition(".")[0]
    return pid.isdecimal() and start.isdecimal() and process_start(int(pid)) != start
