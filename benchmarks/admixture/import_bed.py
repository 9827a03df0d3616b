"""Import of a .bed file: CPU and wall time for a genotype, bytes of a stored genotype, and peak memory, at two memory limits.

    python -m benchmarks.admixture.import_bed [--persons 20000] [--variants 50000] [--limits 2GiB 100MiB] [--folder DIR]

Each import runs in a process of its own, after a small one that compiles the kernels. All must give the same dataset.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dfact
from benchmarks.admixture.simulation import write_bed
from benchmarks.common import call_in_new_process, exit_code, peak_bytes, report
from dfact.data.memory_limit import parse_bytes
from dfact.storage.groups import stored_size

_CPU_NANOSECONDS = 8
_BYTES = 0.28  # of a stored genotype: 0.269 with simulated frequencies
_BESIDE_MIB = 350  # of the program itself, the labels, and the chunks that threads hold


def run(small: str, source: str, target: str, limit: str) -> dict[str, Any]:
    """Import a file within a limit of memory; called in a new process."""
    dfact.import_genotypes(small, target, overwrite=True)
    wall, cpu = time.perf_counter(), time.process_time()
    dataset = dfact.import_genotypes(source, target, memory_limit=limit, overwrite=True)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    entries = dataset.shape[0] * dataset.shape[1]
    array: Any = dataset.source
    return {
        "limit": limit,
        "chunk": " × ".join(map(str, array.array.chunks)),
        "wall_ns": 1e9 * wall / entries,
        "cpu_ns": 1e9 * cpu / entries,
        "bytes": stored_size(Path(target)) / entries,
        "peak_mib": peak_bytes() / 2**20,
        "fingerprint": dataset.fingerprint,
    }


def measure(n: int, m: int, limits: Sequence[str], folder: Path) -> list[tuple[str, bool]]:
    """Report the imports of n persons × m variants; return the thresholds."""
    small, source = folder / "small.bed", folder / "big.bed"
    write_bed(small, 100, 300)
    write_bed(source, n, m)
    files = str(small), str(source), str(folder / "big.zarr")
    rows = [call_in_new_process("benchmarks.admixture.import_bed", "run", *files, limit) for limit in limits]
    thresholds = [("the same dataset within every limit", len({row["fingerprint"] for row in rows}) == 1)]
    for row in rows:
        limit, peak = row["limit"], row["peak_mib"]
        allowed = parse_bytes(limit) / 2**20 + _BESIDE_MIB
        thresholds += [
            (f"{limit}: {row['cpu_ns']:.1f} CPU ns a genotype (threshold {_CPU_NANOSECONDS})", row["cpu_ns"] <= _CPU_NANOSECONDS),
            (f"{limit}: {row['bytes']:.3f} bytes a genotype (threshold {_BYTES})", row["bytes"] <= _BYTES),
            (f"{limit}: peak {peak:.0f} MiB (threshold {allowed:.0f} MiB)", peak <= allowed),
        ]
    report("import_bed", rows, thresholds)
    return thresholds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--persons", type=int, default=20_000)
    parser.add_argument("--variants", type=int, default=50_000)
    parser.add_argument("--limits", nargs="+", default=["2GiB", "100MiB"])
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        return exit_code(measure(options.persons, options.variants, options.limits, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
