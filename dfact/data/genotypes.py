"""Facts about genotypes in addition to their values: the variants of the columns, and the populations of the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact.errors import DataError
from dfact.lazy import pd
from dfact.storage.arrays import member, read_labels, read_numbers, write_array, write_labels

VARIANTS = "variants"
"""Name of the group of the variants in the store."""
_TEXTS = ("chromosome", "name", "A1", "A2")
_NUMBERS = {"cM": np.float64, "position": np.int64}
COLUMNS = ("chromosome", "name", "cM", "position", "A1", "A2")
"""Columns of the table of variants, as in PLINK's .bim files. A genotype is the number of its A2 alleles."""
FREQUENCY = "frequency"
"""Further column: the frequency of A2 in the data, NaN without any genotype."""


@dataclass(frozen=True, eq=False)
class Genotypes:
    """Facts about the rows and the columns of genotypes; none for other data."""

    population: pd.Categorical | None = None
    """Population of each row, missing where unknown."""
    dropped_variants: int = 0
    """Number of variants that the import dropped."""
    read: Callable[[], pd.DataFrame | None] | None = None
    """Function that reads the table of variants, which is large; None without one."""

    @cached_property
    def variants(self) -> pd.DataFrame | None:
        """Chromosome, name, cM, position, A1, A2 and the frequency of A2 of each column, which counts A2; None for other data."""
        return None if self.read is None else self.read()


def write_variants(group: zarr.Group, variants: pd.DataFrame, frequency: NDArray[np.float64]) -> None:
    """Write the table of variants, an array for each of its columns, and the frequencies of A2."""
    members = group.create_group(VARIANTS)
    for name in _TEXTS:
        write_labels(members, name, variants[name].to_numpy(object), "column")
    for name, dtype in _NUMBERS.items():
        write_array(members, name, variants[name].to_numpy(dtype), ("column",))
    write_array(members, FREQUENCY, frequency, ("column",))


def read_variants(group: zarr.Group, n: int) -> pd.DataFrame | None:
    """Read the table of n variants, None if the group has none; raise StoreError if a column of it is missing or damaged."""
    if member(group, VARIANTS) is None:
        return None
    texts = {name: read_labels(group, f"{VARIANTS}/{name}", n) for name in _TEXTS}
    numbers = {name: read_numbers(group, f"{VARIANTS}/{name}", n) for name in _NUMBERS}
    stored = f"{VARIANTS}/{FREQUENCY}"
    further = {FREQUENCY: read_numbers(group, stored, n)} if stored in group else {}
    return pd.DataFrame({name: (texts | numbers)[name] for name in COLUMNS} | further)


def variant_labels(file: str, variants: pd.DataFrame) -> tuple[NDArray[np.object_], int]:
    """Return unique labels of the variants, and the number of those whose name is not unique.

    The label is the name. Variants that share a name, such as ".", are labelled chromosome:position:A1:A2.

    Raises
    ------
    DataError
        Variants share their name, position and alleles.
    """
    labels = variants["name"].to_numpy(object).copy()
    shared = variants["name"].duplicated(keep=False).to_numpy()
    parts = [variants[name][shared].astype(str) for name in ("chromosome", "position", "A1", "A2")]
    labels[shared] = [":".join(part) for part in zip(*parts, strict=True)]
    repeated = np.flatnonzero(pd.Series(labels).duplicated())
    if repeated.size:
        raise DataError(
            f"{file} holds the variant {labels[repeated[0]]!r} twice ({repeated.size} repeated in all), expected distinct variants; "
            "remove or rename them, such as with plink2 --rm-dup or --set-all-var-ids"
        )
    return labels, int(shared.sum())
