"""The variants of a fitted admixture, and their match with those of other genotypes by name and alleles."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.errors import DataError
from dfact.models.estimator import SAVED_TYPES
from dfact.models.fitted_schema import Shape

_UNKNOWN_ALLELES = ("0", ".", "")
"""Texts of PLINK for an allele that no person has."""
_NAMED = 3  # variants in a message


@dataclass(frozen=True, eq=False)
class Variants:
    """The variants of genotypes, an array of m values for each column of a .bim file; the genotypes count A2."""

    chromosome: Annotated[NDArray[Any], Shape(("m",), "texts")]
    name: Annotated[NDArray[Any], Shape(("m",), "texts")]
    position: Annotated[NDArray[Any], Shape(("m",), "integers")]
    A1: Annotated[NDArray[Any], Shape(("m",), "texts")]
    A2: Annotated[NDArray[Any], Shape(("m",), "texts")]

    @classmethod
    def of(cls, table: pd.DataFrame | None) -> "Variants | None":
        """Return the variants of a dataset's table; None without one."""
        if table is None:
            return None
        texts = {name: table[name].to_numpy(object) for name in ("chromosome", "name", "A1", "A2")}
        return cls(position=table["position"].to_numpy(np.int64), **texts)


SAVED_TYPES[Variants.__name__] = Variants


@dataclass(frozen=True, eq=False)
class Match:
    """The variants that a model and other genotypes share."""

    ours: NDArray[np.intp]
    """Their numbers in the model (c,)."""
    theirs: NDArray[np.intp]
    """Their numbers in the genotypes (c,)."""
    swapped: NDArray[np.bool_]
    """Whether the genotypes count the allele that is not counted in the model (c,)."""

    @property
    def is_trivial(self) -> bool:
        """Whether all variants are the same, in the same order."""
        same = np.array_equal(self.ours, np.arange(len(self.ours))) and np.array_equal(self.ours, self.theirs)
        return same and not self.swapped.any()


def match_columns(fitted: Sequence[str], labels: Sequence[str], ours: Variants | None, theirs: Variants | None) -> Match:
    """Match columns by their labels or, if one side has none, by their numbers; and by the alleles, if both sides have them.

    A variant with the two alleles in the other order is swapped. One with other alleles is left out: whether it is of
    the other strand is not guessed.

    Raises
    ------
    DataError
        No variant is shared.

    Warns
    -----
    UserWarning
        Variants are left out.
    """
    unnamed = [str(j) for j in range(len(labels))]
    if len(fitted) == len(labels) and unnamed in (fitted, labels):
        pairs = [(j, j) for j in range(len(labels))]
    else:
        numbers = {label: j for j, label in enumerate(fitted)}
        pairs = [(numbers[label], j) for j, label in enumerate(labels) if label in numbers]
    if not pairs:
        raise DataError(f"X has none of the model's {len(fitted)} SNPs, expected some; its first column is {labels[0]!r}")
    first, second = np.array(pairs, np.intp).T
    missing, unknown = len(fitted) - len(pairs), len(labels) - len(pairs)
    if missing or unknown:
        found = f"{missing} of the model's {len(fitted)} SNPs are not in X, and {unknown} of X are not in the model"
        warnings.warn(f"{found}; both are left out", UserWarning, stacklevel=5)
    swapped = np.zeros(len(first), bool)
    if ours is not None and theirs is not None:
        swapped, same = _compare_alleles(ours, theirs, first, second)
        if not (same | swapped).all():
            others = np.flatnonzero(~(same | swapped))
            texts = [_describe(fitted[first[i]], ours, first[i], theirs, second[i]) for i in others[:_NAMED]]
            found = f"{len(others)} of {len(first)} SNPs have other alleles in X than in the model: {', '.join(texts)}"
            found += ", …" if len(others) > _NAMED else ""
            if len(others) == len(first):
                raise DataError(f"{found}; expected the same, of the same strand")
            warnings.warn(f"{found}; they are left out", UserWarning, stacklevel=5)
            first, second, swapped = (side[same | swapped] for side in (first, second, swapped))
    return Match(first, second, swapped)


def _describe(name: str, ours: Variants, i: int, theirs: Variants, j: int) -> str:
    return f"{name!r} ({theirs.A1[j]}, {theirs.A2[j]}; in the model {ours.A1[i]}, {ours.A2[i]})"


def _compare_alleles(
    ours: Variants, theirs: Variants, first: NDArray[np.intp], second: NDArray[np.intp]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which pairs of variants have swapped alleles, and which the same ones; an unknown allele is like any."""
    A1, A2, B1, B2 = ours.A1[first], ours.A2[first], theirs.A1[second], theirs.A2[second]
    known = [~np.isin(allele.astype(str), _UNKNOWN_ALLELES) for allele in (A1, A2, B1, B2)]

    def agree(a: int, b: int) -> NDArray[np.bool_]:
        alleles = (A1, A2, B1, B2)
        return np.asarray((alleles[a] == alleles[b]) | ~known[a] | ~known[b], bool)

    same = agree(0, 2) & agree(1, 3)
    swapped = agree(0, 3) & agree(1, 2) & ~same
    return swapped, same
