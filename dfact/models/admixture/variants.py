"""The variants of a fitted admixture, matched with the variants of other genotypes by name or position, and alleles."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Annotated, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.errors import DataError, warn
from dfact.models.estimator import add_saved_types
from dfact.models.fitted_schema import Shape

_UNKNOWN_ALLELES = ("0", ".", "")
"""Texts of PLINK for an allele that no individual has."""
_NO_NAME = "."
_NO_CHROMOSOME = ("0", ".", "")
_CHROMOSOMES = {"23": "X", "24": "Y", "25": "XY", "26": "MT", "M": "MT"}
"""Names of chromosomes to which programs give numbers or other names."""
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


add_saved_types(Variants)


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
    the other strand is not guessed. Variants whose labels do not match are matched by chromosome, position and alleles.

    Raises
    ------
    DataError
        No variant is shared.

    Warns
    -----
    UserWarning
        Variants are left out.
    """
    unnamed, by_position = [str(j) for j in range(len(labels))], 0
    if len(fitted) == len(labels) and unnamed in (fitted, labels):
        pairs = [(j, j) for j in range(len(labels))]
    else:
        numbers = {label: j for j, label in enumerate(fitted) if label != _NO_NAME}
        pairs = [(numbers[label], j) for j, label in enumerate(labels) if label in numbers]
        if ours is not None and theirs is not None and len(pairs) < len(labels):
            renamed = _match_positions(ours, theirs, pairs)
            pairs, by_position = sorted([*pairs, *renamed], key=itemgetter(1)), len(renamed)
    if not pairs:
        found = f"X has none of the model's {len(fitted)} SNPs, expected some; its first column is {labels[0]!r}, the model's {fitted[0]!r}"
        raise DataError(found)
    first, second = np.array(pairs, np.intp).T
    missing, unknown = len(fitted) - len(pairs), len(labels) - len(pairs)
    if missing or unknown:
        found = f"{missing} of the model's {len(fitted)} SNPs are not in X, and {unknown} of X are not in the model"
        matched = f"{len(pairs)} are matched" + (f", {by_position} of them by position and alleles" if by_position else "")
        warn(f"{found}; these are left out, {matched}")
    swapped = np.zeros(len(first), bool)
    if ours is not None and theirs is not None:
        swapped, same = _compare_alleles(ours, theirs, first, second)
        if not (same | swapped).all():
            others = np.flatnonzero(~(same | swapped))
            texts = [_describe(fitted[first[i]], ours, first[i], theirs, second[i]) for i in others[:_NAMED]]
            found = f"{len(others)} of {len(first)} matched SNPs have other alleles in X than in the model: {', '.join(texts)}"
            found += ", …" if len(others) > _NAMED else ""
            if len(others) == len(first):
                raise DataError(f"{found}; expected the same, of the same strand")
            used = len(first) - len(others)
            warn(f"{found}; they are left out, {used} SNPs are used")
            first, second, swapped = (side[same | swapped] for side in (first, second, swapped))
    return Match(first, second, swapped)


def _match_positions(ours: Variants, theirs: Variants, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the pairs of variants, other than the given ones, with the same chromosome, position and alleles, in any order.

    A variant that has several counterparts, as other variants of its position have unknown alleles, is left out.
    """
    used, tables = np.array(pairs, np.intp).reshape(-1, 2).T, []
    for variants, numbers, name in zip((ours, theirs), used, ("first", "second"), strict=True):
        free = np.ones(len(variants.name), bool)
        free[numbers] = False
        chromosomes = pd.Series(variants.chromosome[free].astype(str)).str.removeprefix("chr").replace(_CHROMOSOMES)
        table = pd.DataFrame({"chromosome": chromosomes, "position": variants.position[free], name: np.flatnonzero(free)})
        tables.append(table[~chromosomes.isin(_NO_CHROMOSOME) & (table["position"] > 0)])
    shared = tables[0].merge(tables[1], on=["chromosome", "position"])
    swapped, same = _compare_alleles(ours, theirs, shared["first"].to_numpy(np.intp), shared["second"].to_numpy(np.intp))
    found = shared[swapped | same]
    found = found[~found["first"].duplicated(keep=False) & ~found["second"].duplicated(keep=False)]
    return list(zip(found["first"].tolist(), found["second"].tolist(), strict=True))


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


def chromosome_borders(m: int, variants: Variants | None) -> NDArray[np.intp]:
    """Return the first SNP of each run of SNPs with one chromosome, and the number of SNPs m (runs + 1,)."""
    changes = np.empty(0, np.intp) if variants is None else np.flatnonzero(variants.chromosome[1:] != variants.chromosome[:-1]) + 1
    return np.concatenate([[0], changes, [m]]).astype(np.intp)
