"""What tests of data do in processes forked from the fork server: imports are killed, limited or measured. Nothing here imports a test."""

import os
import re
import resource
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np

import dfact
from dfact.data import stored_dataset
from dfact.imports.arrays import triplets
from dfact.imports.readers.text import delimited


def peak_memory() -> float:
    """MB that this process has taken at most, also of what it shares; getrusage may tell of the process which started it."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def peaks_of_triplets(folder: str, by: str, sources: list[str]) -> list[float]:
    """Import the triplets; return the peak after each."""
    tempfile.tempdir = folder
    triplets._BUCKET_ENTRIES = triplets._BATCH_ENTRIES = stored_dataset._CHUNK_ENTRIES = delimited._BLOCK_BYTES = 1 << 16
    peaks = []
    for source in sources:
        dfact.import_triplets(source, f"{source}.zarr", shape=None if by == "labels" else (2000, 3000))
        peaks.append(peak_memory())
    return peaks


def peaks_of_tables(folder: str) -> list[tuple[int, str, float]]:
    """Import small tables, then large ones; return the rows, the fingerprint and the growth of the peak for each of these."""
    delimited._BLOCK_BYTES = 1 << 17
    target = f"{folder}/d.zarr"
    for name in ("small.csv", "small.parquet"):
        dfact.import_table(f"{folder}/{name}", target, items="*", overwrite=True, n_readers=2)
    before, found = peak_memory(), []
    for name in ("big.csv", "big.parquet"):
        dataset = dfact.import_table(f"{folder}/{name}", target, items="*", overwrite=True, n_readers=2)
        found.append((dataset.shape[0], dataset.fingerprint, peak_memory() - before))
    return found


def killed(folder: str) -> None:
    """Import a table and end as soon as rows are written."""

    def end(_: int, __: int, unit: str) -> None:
        if unit == "rows written":
            os.kill(os.getpid(), signal.SIGKILL)

    dfact.import_table(f"{folder}/t.csv", f"{folder}/d.zarr", items="Q*", progress=end)


def limited(folder: str) -> list[str]:
    """Import a table and an array with a limit of the size of files; return the errors."""

    def table(name: str) -> None:
        dfact.import_table(f"{folder}/t.csv", f"{folder}/{name}", items="Q*")

    def array(name: str) -> None:
        dfact.import_array(np.random.default_rng(0).normal(size=(3000, 300)), f"{folder}/{name}")

    table("warm.zarr")  # the kernels' cache is not part of the test
    array("warmer.zarr")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    errors = []
    for make in (table, array):
        try:
            make("d.zarr")
        except dfact.StoreError as error:
            errors.append(str(error))
    return errors


def modules_of_dask() -> list[bool]:
    """Tell whether Dask's arrays are imported, before and after a fit of an array of NumPy."""
    before = "dask.array" in sys.modules
    dfact.NMF(2, max_iter=2).fit(np.ones((9, 3)))
    return [before, "dask.array" in sys.modules]
