"""Runs of admixtures as the files of pong: .Q files, a map of them, and the populations of the individuals."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.errors import DataError, StoreError
from dfact.export.admixture_files import MEMBERSHIPS, number_file
from dfact.storage.files import atomic_file

FILE_MAP, POPULATIONS = "pong_filemap.txt", "ind2pop.txt"
_UNKNOWN = "unknown"


def write_pong(folder: Path, runs: Sequence[NDArray[Any]], populations: Sequence[str] | None, *, overwrite: bool = False) -> list[Path]:
    """Write memberships (n, K) of the same rows as ``k3r1.Q`` and so on, the map of these files, and the populations, if there are any.

    Parameters
    ----------
    folder : path
        It is made if it does not exist.
    runs : sequence of arrays (n, K)
        Runs of any K.
    populations : sequence of n texts, optional
        "" where unknown.
    overwrite : bool
        Replace files of these names.

    Returns
    -------
    list of paths
        The files that were written: the map first, then the populations if there are any, then the runs.

    Raises
    ------
    DataError
        Runs have different numbers of rows, or a row has no memberships, which pong cannot show.
    StoreError
        A file exists (unless ``overwrite``), or cannot be written.
    """
    n = {len(run) for run in runs}
    if len(n) != 1:
        raise DataError(f"the runs have {sorted(n)} individuals, expected the same ones in all runs")
    silent = np.flatnonzero([not np.isfinite(row).all() for row in runs[0]])
    if silent.size:
        raise DataError(f"individual {silent[0]} (counted from 0) has no genotype and no ancestry proportions; leave it out and fit again")
    counts, names = Counter[int](), list[str]()
    for run in runs:
        counts[run.shape[1]] += 1
        names.append(f"k{run.shape[1]}r{counts[run.shape[1]]}")
    paths = [folder / FILE_MAP, *([folder / POPULATIONS] if populations is not None else []), *(folder / (name + MEMBERSHIPS) for name in names)]
    existing = [path for path in paths if path.exists()]
    if existing and not overwrite:
        raise StoreError(f"{existing[0]} exists already, expected a new folder; choose another one or replace it with --overwrite")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder} cannot be made: {error.strerror or error}") from error
    for run, name in zip(runs, names, strict=True):
        with number_file(folder / (name + MEMBERSHIPS), overwrite=overwrite) as write:
            write(np.asarray(run))
    if populations is not None:
        _write_lines(folder / POPULATIONS, [_UNKNOWN if not name else str(name) for name in populations], overwrite=overwrite)
    lines = [f"{name}\t{run.shape[1]}\t{name}{MEMBERSHIPS}" for run, name in zip(runs, names, strict=True)]
    _write_lines(folder / FILE_MAP, lines, overwrite=overwrite)
    return paths


def _write_lines(path: Path, lines: Sequence[str], *, overwrite: bool) -> None:
    with atomic_file(path, overwrite=overwrite) as partial:
        partial.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
