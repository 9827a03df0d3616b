"""The SNPs of fitted genotypes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from dfact.lazy import pd
from dfact.models.fitted_schema import Shape


@dataclass(frozen=True, eq=False)
class Variants:
    """The variants of genotypes, an array of m values for each column of a .bim file; the genotypes count A2."""

    chromosome: Annotated[NDArray[Any], Shape(("m",), "texts")]
    name: Annotated[NDArray[Any], Shape(("m",), "texts")]
    position: Annotated[NDArray[Any], Shape(("m",), "integers")]
    A1: Annotated[NDArray[Any], Shape(("m",), "texts")]
    A2: Annotated[NDArray[Any], Shape(("m",), "texts")]
    frequency: Annotated[NDArray[Any], Shape(("m",), finite=False)] | None = None
    """Frequencies of A2 in the data, NaN without any genotype; None for data of versions that did not store them."""

    @classmethod
    def of(cls, table: pd.DataFrame | None) -> Variants | None:
        """Return the variants of a dataset's table; None without one."""
        if table is None:
            return None
        texts = {name: table[name].to_numpy(object) for name in ("chromosome", "name", "A1", "A2")}
        frequency = table["frequency"].to_numpy(np.float64) if "frequency" in table else None
        return cls(position=table["position"].to_numpy(np.int64), frequency=frequency, **texts)

    @classmethod
    def upgrade(cls, saved: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of any version as today's."""
        return {"frequency": None} | saved
