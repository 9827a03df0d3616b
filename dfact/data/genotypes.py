"""Facts about genotypes in addition to their values: the variants of the columns, and the populations of the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

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


UNKNOWN = ("", "-")
"""Texts of an unknown population."""


def population_texts(populations: Any) -> NDArray[np.object_] | None:
    """Return the name of the population of each row, "" where unknown; None without any."""
    if populations is None:
        return None
    texts = ["" if pd.isna(name) else str(name).strip() for name in populations]
    return np.array(["" if text in UNKNOWN else text for text in texts], dtype=object)
