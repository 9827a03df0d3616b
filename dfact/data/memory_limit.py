"""Limits of memory: as users state them, and what the machine and its control groups leave to this process."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

from dfact.errors import MemoryPlanError, ParameterError


@dataclass(frozen=True)
class _Version:
    """Names in a version of Linux's control groups."""

    filesystem: str
    limits: tuple[str, ...]
    """Files with the most bytes that a group may use."""
    usage: str
    cache: str
    """Field of ``memory.stat`` with the bytes of files' contents that the system drops when memory is scarce."""


_VERSIONS = (
    _Version("cgroup2", ("memory.max", "memory.high"), "memory.current", "inactive_file"),
    _Version("cgroup", ("memory.limit_in_bytes", "memory.soft_limit_in_bytes"), "memory.usage_in_bytes", "total_inactive_file"),
)


@dataclass(frozen=True)
class FreeMemory:
    """The memory that this process may still use, and what limits it."""

    size: int
    """Bytes."""
    source: str
    """The machine, or the file with the limit of a control group, that leaves no more."""

    def __str__(self) -> str:
        return f"{self.size / 2**30:.1f} GiB that {self.source} leaves"


def parse_bytes(limit: int | str) -> int:
    """Return a limit in bytes, given as a number or as text like ``"4GiB"`` or ``"500 MB"``."""
    try:
        if isinstance(limit, str):
            from dask.utils import parse_bytes as parse  # takes a tenth of a second to import

            limit = parse(limit)
        size = int(limit)
    except (ValueError, TypeError, OverflowError) as error:
        raise ParameterError(f"memory_limit is {limit!r}, expected bytes or a size like '4GiB'") from error
    if size <= 0:
        raise ParameterError(f"memory_limit is {limit!r}, expected more than 0")
    return size


def free_memory(root: Path = Path("/")) -> FreeMemory:
    """Return the memory that this process may still use: that of the machine, or less if a control group above it allows less.

    A batch system limits a job by a group that is several levels above the process, so every level counts, of both versions. What a
    group allows is its limit minus what its processes use already, except files' contents that the system can drop. ``root`` is the
    folder of ``/proc`` and of the mounted groups.
    """
    found = FreeMemory(psutil.virtual_memory().available, "the machine")
    for version, group in _groups(root):
        for name in version.limits:
            with suppress(OSError, ValueError):  # the root has no limits, "max" is not a number, and another mount may hide the files
                free = int((group / name).read_text()) - _usage(version, group)
                if free < found.size:
                    found = FreeMemory(max(free, 0), f"{group / name}")
    return found


def _groups(root: Path) -> Iterator[tuple[_Version, Path]]:
    """Yield the folders of the control groups that limit the memory of this process, from its own up to the highest that is mounted."""
    with suppress(OSError, ValueError):  # systems without control groups
        own = dict(_memberships(root / "proc/self/cgroup"))
        for line in (root / "proc/self/mountinfo").read_text().splitlines():
            mount, _, rest = line.partition(" - ")
            _, _, _, mounted, point, *_ = mount.split()
            filesystem, _, options = rest.split()[:3]
            for version in _VERSIONS:
                if filesystem == version.filesystem and version in own and (version is _VERSIONS[0] or "memory" in options.split(",")):
                    top = root / point.lstrip("/")
                    # A container may see the path of its group on the host, while only its own part of the tree is mounted.
                    inside = PurePosixPath(own[version])
                    parts = inside.relative_to(mounted).parts if inside.is_relative_to(mounted) else ()
                    folder = top.joinpath(*parts) if ".." not in parts else top
                    yield from ((version, level) for level in (folder, *folder.parents) if level.is_relative_to(top))


def _memberships(path: Path) -> Iterator[tuple[_Version, str]]:
    """Yield the path of this process's group in each version of control groups."""
    for line in path.read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers:
            yield _VERSIONS[0], group
        elif "memory" in controllers.split(","):
            yield _VERSIONS[1], group


def _usage(version: _Version, group: Path) -> int:
    """Return the bytes that the processes of a group use, minus the contents of files that can be dropped."""
    fields = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int((group / version.usage).read_text()) - int(fields.get(version.cache, 0))


def half_of_free_memory() -> float:
    """Return the number of bytes that what is read as a whole may take."""
    return free_memory().size / 2


def require_memory(name: str, n_bytes: float, remedy: str) -> None:
    """Raise MemoryPlanError if so many bytes, which are read at once, do not fit in half of the free memory."""
    if n_bytes > half_of_free_memory():
        found = f"{name} takes {n_bytes / 2**30:.1f} GiB of memory, expected at most half of the {free_memory()}"
        raise MemoryPlanError(f"{found}; {remedy}")
