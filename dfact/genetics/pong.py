"""Runs of admixtures as the files of pong: .Q files, a map of them, and the populations of the individuals."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.errors import DataError, StoreError
from dfact.export.row_files import MEMBERSHIPS
from dfact.genetics.admixture_files import number_file
from dfact.storage.files import atomic_file

FILE_MAP, POPULATIONS = "pong_filemap.txt", "ind2pop.txt"
_UNKNOWN = "unknown"


def write_pong(folder: Path, runs: Iterable[NDArray[Any]], populations: Sequence[str] | None, *, overwrite: bool = False) -> list[Path]:
    """Write memberships (n, K) of the same rows as ``k3r1.Q`` and so on, the map of these files, and the populations, if there are any.

    Parameters
    ----------
    folder : path
        It is made if it does not exist.
    runs : iterable of arrays (n, K)
        Runs of any K; each is written before the next is taken, so that an interruption loses no earlier one.
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
    about = [folder / FILE_MAP, *([folder / POPULATIONS] if populations is not None else [])]
    if (existing := [path for path in about if path.exists()]) and not overwrite:
        raise StoreError(f"{existing[0]} exists already, expected a new folder; choose another one or replace it with --overwrite")
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder} cannot be made: {error.strerror or error}") from error
    counts, paths, lines = Counter[int](), list[Path](), list[str]()
    n = None if populations is None else len(populations)
    for run in runs:
        try:
            n = _check_rows(run, n)
        except DataError:
            if is_new and not paths:
                folder.rmdir()
            raise
        counts[run.shape[1]] += 1
        name = f"k{run.shape[1]}r{counts[run.shape[1]]}"
        paths.append(folder / (name + MEMBERSHIPS))
        with number_file(paths[-1], overwrite=overwrite) as write:
            write(run)
        lines.append(f"{name}\t{run.shape[1]}\t{paths[-1].name}")
    if populations is not None:
        _write_lines(about[-1], [str(name) or _UNKNOWN for name in populations], overwrite=overwrite)
    _write_lines(about[0], lines, overwrite=overwrite)
    return [*about, *paths]


def _check_rows(run: NDArray[Any], n: int | None) -> int:
    """Return the number of rows of a run, which is n and of which all have memberships."""
    if n is not None and len(run) != n:
        raise DataError(f"a run of K = {run.shape[1]} has {len(run)} individuals, expected {n}, as the other runs and the populations")
    silent = np.flatnonzero(~np.isfinite(run).all(axis=1))
    if silent.size:
        raise DataError(f"individual {silent[0]} (counted from 0) has no genotype and no ancestry proportions; leave it out and fit again")
    return len(run)


def _write_lines(path: Path, lines: Sequence[str], *, overwrite: bool) -> None:
    with atomic_file(path, overwrite=overwrite) as partial:
        partial.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
