"""Files of admixture programs: memberships as .Q and frequencies as .P, numbers without labels, separated by blanks.

A .Q file has a line of K memberships for each individual, a .P file a line of K frequencies for each SNP, in the order of the data.
A .Q_se file has the standard errors of the numbers of a .Q file.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.errors import DataError, ParameterError
from dfact.export.row_files import FREQUENCIES, MEMBERSHIPS, STANDARD_ERRORS
from dfact.storage.files import atomic_file
from dfact.storage.input_files import open_input_file
from dfact.storage.location import Location

if TYPE_CHECKING:
    from dfact.models.estimator import Factorization

_ROUNDING = 1e-3  # of the sum of a row of a .Q file; programs print 5 or more decimals
_MAX_ROWS = 1 << 16  # formatted at once


@contextmanager
def number_file(path: Location, *, overwrite: bool) -> Iterator[Callable[[NDArray[Any]], None]]:
    """Open a file for rows of numbers with 6 decimals, separated by blanks; NaN is "NaN", which R and Python read."""
    with atomic_file(path, overwrite=overwrite) as partial, partial.open("w", encoding="ascii", newline="\n") as stream:

        def write(rows: NDArray[Any]) -> None:
            line = " ".join(["%.6f"] * rows.shape[1]) + "\n"
            for row in rows.tolist():
                stream.write((line % tuple(row)).replace("nan", "NaN"))

        yield write


def write_frequencies(model: "Factorization", path: Location, *, overwrite: bool) -> None:
    """Write the frequencies of an admixture (K, m) as a .P file, a line for each SNP."""
    if not hasattr(model, "allele_frequencies_"):
        raise ParameterError(f"{path} ends in {FREQUENCIES!r}, expected a model with frequencies; the model is a {type(model).__name__}")
    P = model.allele_frequencies_
    with number_file(path, overwrite=overwrite) as write:
        for start in range(0, P.shape[1], _MAX_ROWS):
            write(P[:, start : start + _MAX_ROWS].T)


def require_memberships(model: "Factorization", path: Any) -> None:
    """Raise an error if a .Q file is to be written of a model without memberships, or a .Q_se file of one without their errors."""
    ending, kind = Path(path).suffix, type(model).__name__
    if ending == MEMBERSHIPS and not hasattr(model, "memberships_"):
        raise ParameterError(f"{path} ends in {ending!r}, expected a model with memberships; the model is a {kind}")
    if ending == STANDARD_ERRORS and getattr(model, "memberships_se_", None) is None:
        found = f"{path} ends in {ending!r}, expected a model with standard errors of the memberships"
        raise ParameterError(f"{found}; this {kind} has none: compute those of an admixture with dfact stability --snp-blocks")


def read_memberships(path: str | PathLike[str]) -> NDArray[np.float64]:
    r"""Read the memberships (n, K) of a .Q file, as ADMIXTURE and its relatives write them; it may be compressed (.gz).

    Parameters
    ----------
    path : path or URL
        Lines of K numbers from 0 to 1 that sum to 1, separated by blanks. A line of NaN is an individual without any genotype.

    Returns
    -------
    array (n, K)
        The memberships, in the order of the file, for :func:`dfact.report.plot_structure` and for comparisons.

    Raises
    ------
    DataError
        The file is empty, has lines of different lengths, or has something other than memberships.
    StoreError
        There is no file at ``path``, or it cannot be read.

    Examples
    --------
    >>> import dfact, pathlib
    >>> _ = pathlib.Path("run.2.Q").write_text("0.750000 0.250000\n0.000010 0.999990\n")
    >>> dfact.report.read_memberships("run.2.Q").shape
    (2, 2)
    """
    name, Q = _read_numbers(path)
    sums = Q.sum(axis=1)
    wrong = np.flatnonzero(np.abs(sums - 1) > _ROUNDING)
    if wrong.size:
        found = f"line {wrong[0] + 1} of {name} has the sum {sums[wrong[0]]:.6g}, expected 1"
        raise DataError(f"{found}; a .Q file has a line for each individual, transpose it if it has a line for each population")
    return Q


def read_frequencies(path: str | PathLike[str]) -> NDArray[np.float64]:
    r"""Read the frequencies (K, m) of a .P file, as ADMIXTURE and its relatives write them; it may be compressed (.gz).

    Which allele they are of is up to the program: ADMIXTURE and ``dfact export`` write those of the allele A2 of the .bim file,
    fastmixture those of A1, which are 1 minus the frequencies of A2. Invalid files are refused as by :func:`read_memberships`.

    Parameters
    ----------
    path : path or URL
        Lines of K numbers from 0 to 1, separated by blanks.

    Returns
    -------
    array (K, m)
        The frequencies as in ``allele_frequencies_`` of :class:`dfact.Admixture`; SNPs are in the order of the file.

    Examples
    --------
    >>> import dfact, pathlib
    >>> _ = pathlib.Path("run.2.P").write_text("0.750000 0.250000\n0.000010 0.500000\n0.1 0.2\n")
    >>> dfact.report.read_frequencies("run.2.P").shape
    (2, 3)
    """
    return np.ascontiguousarray(_read_numbers(path)[1].T)


def _read_numbers(path: str | PathLike[str]) -> tuple[str, NDArray[np.float64]]:
    """Read the numbers of a file, and return its name in messages, too."""
    file = open_input_file(path)
    compression: Any = "gzip" if file.suffixes[-1:] == [".gz"] else None
    try:
        with file.open() as stream:
            table = pd.read_csv(stream, sep=r"\s+", header=None, compression=compression, dtype=np.float64, na_values=["NaN", "NA"])
    except (ValueError, EOFError, OSError) as error:  # pandas raises subclasses of ValueError
        reason = str(error).strip().splitlines()[0]
        raise DataError(f"{file.name} cannot be read as a table of numbers ({reason}), expected numbers separated by blanks") from error
    numbers = table.to_numpy()
    bad = np.argwhere((numbers < 0) | (numbers > 1) | (np.isnan(numbers) & ~np.isnan(numbers).all(axis=1)[:, None]))
    if bad.size:
        i, j = bad[0]
        raise DataError(f"line {i + 1} of {file.name} has the number {numbers[i, j]:g}, expected numbers from 0 to 1 in all columns")
    return file.name, numbers
