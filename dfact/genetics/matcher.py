"""The view of genotypes by the SNPs of a fitted model: matched by name or position, alleles and strand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset, Genotypes
from dfact.data.sources.base import SelectedColumns
from dfact.data.statistics import ColumnStatistics
from dfact.errors import DataError, warn
from dfact.lazy import pd
from dfact.models.estimator import Variants

_UNKNOWN_ALLELES = ("0", ".", "")
"""Texts of PLINK for an allele that no individual has."""
_NO_NAME = "."
_NO_CHROMOSOME = ("0", ".", "")
_CHROMOSOMES = {"23": "X", "24": "Y", "25": "XY", "26": "MT", "M": "MT"}
"""Names of chromosomes to which programs give numbers or other names."""
_BASES = str.maketrans("ACGT", "TGCA")
_NAMED = 3  # variants in a message
_PLOIDY = 2
_FAR, _ERRORS = 0.5, 4.0
"""A frequency disagrees if it is this far from that of the fitted data, in addition to this number of standard errors and an allele."""
_OTHER, _SEVERAL = 0.25, 10
"""Share and number of SNPs with other alleles from which names or positions are those of other variants."""
_CHANCE = 0.01  # variants of different reference genomes share some positions


@dataclass(frozen=True, eq=False)
class Match:
    """The variants that a model and other genotypes share."""

    ours: NDArray[np.intp]
    """Their numbers in the model (c,)."""
    theirs: NDArray[np.intp]
    """Their numbers in the genotypes (c,)."""
    turned: NDArray[np.bool_]
    """Whether the genotypes count the allele that is not counted in the model (c,)."""
    text: str = ""
    """Counts of SNPs that differ in the order of their alleles or in their strand, or that are left out; empty without any."""


def match_columns(fitted: Sequence[str], labels: Sequence[str], ours: Variants | None, theirs: Variants | None) -> Match:
    """Match columns by their labels or, if one side has none, by their numbers; and by the alleles, if both sides have them.

    A SNP with the two alleles in the other order is swapped, one with their complements is on the other strand, and may be swapped,
    too. Whether one of the alleles A and T, or C and G, is swapped or on the other strand cannot be told: it is left out if any other
    SNP is on the other strand. SNPs with other alleles are left out. SNPs whose labels do not match are matched by chromosome,
    position and alleles.

    Raises
    ------
    DataError
        No variant is shared, few positions by chance, or variants of which many have other alleles.
    """
    first, second, found_by_position, apart = _pairs(fitted, labels, ours, theirs)
    by_position = int(found_by_position.sum())
    if not first.size:
        found = f"X has none of the model's {len(fitted)} SNPs, expected some; its first column is {labels[0]!r}, the model's {fitted[0]!r}"
        raise DataError(found)
    missing, unknown = len(fitted) - len(first), len(labels) - len(first)
    if by_position == len(first) <= _CHANCE * min(len(fitted), len(labels)):
        found = f"X shares no names and {by_position} positions with the model's {len(fitted)} SNPs, expected most of them"
        raise DataError(f"{found}; use positions of the same reference genome, or the same names")
    if ours is None or theirs is None:
        return Match(first, second, np.zeros(len(first), bool), _describe(len(first), missing=missing, unknown=unknown))
    alleles = _Alleles.of(ours, theirs, first, second)
    other = ~(alleles.same | alleles.swapped | alleles.flipped)
    any_flipped = bool((alleles.flipped & ~alleles.palindromic).any())
    dropped = alleles.palindromic & ~other & any_flipped
    kept = ~other & ~dropped
    counts = {
        "missing": missing,
        "unknown": unknown,
        "by_position": int((found_by_position & kept).sum()),
        "swapped": int((alleles.turned & kept).sum()),
    }
    counts |= {"flipped": int((alleles.flipped & kept).sum()), "palindromic": int(dropped.sum()), "other": int(other.sum())}
    examples = [_compare(fitted[first[i]], ours, first[i], theirs, second[i]) for i in np.flatnonzero(other)[:_NAMED]]
    inverted = [repr(fitted[first[i]]) for i in np.flatnonzero(dropped)[:_NAMED]]
    text = _describe(int(kept.sum()), **counts, examples=examples, inverted=inverted)
    if not kept.any():
        raise DataError(f"{text}: expected SNPs with the model's alleles; check that both name the same variants")
    n_other, n_shared = int(other.sum()) + apart, len(first) + apart
    if n_other >= max(_SEVERAL, _OTHER * n_shared):
        said = f"{n_other} of the {n_shared} SNPs of X with a name or a position of the model's have other alleles, expected few"
        said += f": {_some(examples, n_other)}" if examples else ""
        raise DataError(f"{said}; use positions of the same reference genome, and the names of the same variants")
    return Match(first[kept], second[kept], alleles.turned[kept], text)


def can_match_labels(fitted: Sequence[str], labels: Sequence[str]) -> bool:
    """Return whether labels name the columns: none occurs twice, and none are merely the numbers of the columns."""
    numbered = [[str(j) for j in range(len(some))] for some in (fitted, labels)]
    return len({*fitted}) == len(fitted) and len({*labels}) == len(labels) and list(fitted) != numbered[0] and list(labels) != numbered[1]


def view_of(dataset: Dataset, fitted: Sequence[str], ours: Variants | None, theirs: Variants | None) -> Dataset:
    """Return genotypes with the fitted columns; unchanged where one side has no variants and labels name no columns."""
    labels = [str(label) for label in dataset.column_labels]
    if (ours is None or theirs is None) and not can_match_labels(fitted, labels):
        return dataset
    return view_by_variants(dataset, match_columns(fitted, labels, ours, theirs), fitted, None if ours is None else ours.frequency)


def view_by_variants(dataset: Dataset, match: Match, fitted: Sequence[str], frequency: NDArray[np.float64] | None) -> Dataset:
    """Return genotypes as a dataset with the fitted columns: in their order, counting their alleles, missing where X lacks a SNP.

    Warns
    -----
    UserWarning
        SNPs are left out, swapped or on the other strand; or have other frequencies than the fitted data.
    """
    if match.text:
        warn(match.text)
    m, statistics = len(fitted), dataset.statistics
    variants = Variants.of(dataset.genotypes.variants)
    if variants is not None and variants.frequency is not None and frequency is not None:
        theirs = variants.frequency[match.theirs]
        observed = statistics.observed[match.theirs]
        _compare_frequencies(fitted, match.ours, np.where(match.turned, 1 - theirs, theirs), observed, frequency[match.ours])
    if len(match.ours) == m == dataset.shape[1] and np.array_equal(match.ours, match.theirs) and not match.turned.any():
        return dataset if [*dataset.column_labels] == [*fitted] else replace(dataset, column_labels=np.array(fitted, object))
    columns, turned = np.full(m, -1, np.intp), np.zeros(m, np.bool_)
    columns[match.ours], turned[match.ours] = match.theirs, match.turned
    absent = columns < 0

    def of_fitted(values: NDArray[Any], missing: float) -> NDArray[Any]:
        return np.where(absent, missing, values[columns])

    low, high = of_fitted(statistics.minimum, np.inf), of_fitted(statistics.maximum, -np.inf)
    offset = of_fitted(dataset.offset, 0.0)
    low[turned], high[turned] = _PLOIDY - 2 * offset[turned] - high[turned], _PLOIDY - 2 * offset[turned] - low[turned]
    observed = of_fitted(statistics.observed, 0).astype(np.int64)
    return replace(
        dataset,
        source=SelectedColumns(dataset.source, columns, dataset.missing_code, _PLOIDY - 2 * offset, turned),
        column_labels=np.array(fitted, dtype=object),
        valid_range=np.where(absent[:, None], [0.0, _PLOIDY], dataset.valid_range[columns]),
        offset=offset,
        statistics=ColumnStatistics(observed, low, high, statistics.n_rows, statistics.empty_rows, statistics.n_empty_rows),
        codebook=None,
        genotypes=Genotypes(dataset.genotypes.population),
    )


def _describe(
    matched: int,
    *,
    missing: int,
    unknown: int,
    by_position: int = 0,
    swapped: int = 0,
    flipped: int = 0,
    palindromic: int = 0,
    other: int = 0,
    examples: Sequence[str] = (),
    inverted: Sequence[str] = (),
) -> str:
    """Return the counts of a match as a sentence; an empty text if all SNPs are matched as they are."""
    if not (missing or unknown or by_position or swapped or flipped or palindromic or other):
        return ""
    said = [f"{by_position} by position"] * bool(by_position)
    said += [f"{swapped} with A1 and A2 swapped"] * bool(swapped) + [f"{flipped} on the other strand"] * bool(flipped)
    left = [f"{palindromic} palindromic (A/T or C/G), as strands differ: {_some(inverted, palindromic)}"] * bool(palindromic)
    left += [f"{other} with other alleles: {_some(examples, other)}"] * bool(other)
    left += [f"{missing} of the model that X lacks"] * bool(missing) + [f"{unknown} of X that the model lacks"] * bool(unknown)
    text = f"{matched} SNPs are matched" + (f", {', '.join(said)}" if said else "")
    return text + (f"; left out are {'; '.join(left)}" if left else "")


def _some(names: Sequence[str], n: int) -> str:
    """Return the first of n names."""
    return f"{', '.join(names)}{', …' if n > len(names) else ''}"


def _pairs(
    fitted: Sequence[str], labels: Sequence[str], ours: Variants | None, theirs: Variants | None
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_], int]:
    """Return the numbers of the columns of each pair, in the order of the second side, and whether it was found by position.

    The last value is the number of further positions that both sides have, with other alleles.
    """
    unnamed = [str(j) for j in range(len(labels))]
    if len(fitted) == len(labels) and unnamed in (list(fitted), list(labels)):
        return np.arange(len(labels)), np.arange(len(labels)), np.zeros(len(labels), bool), 0
    names = pd.Index(list(fitted), dtype=object)
    if not names.is_unique:
        names = names.where(~names.duplicated(keep=False) & (names != _NO_NAME), pd.Index([f"{j}\0" for j in range(len(names))]))
    found = names.get_indexer(pd.Index(list(labels), dtype=object))
    found[np.asarray(labels, object) == _NO_NAME] = -1
    second = np.flatnonzero(found >= 0)
    first = found[second]
    if ours is None or theirs is None or len(first) == len(labels):
        return first, second, np.zeros(len(first), bool), 0
    *more, apart = _match_positions(ours, theirs, first, second)
    by_position = np.arange(len(first) + len(more[0])) >= len(first)
    first, second = np.concatenate([first, more[0]]), np.concatenate([second, more[1]])
    order = np.argsort(second, kind="stable")
    return first[order], second[order], by_position[order], apart


def _match_positions(
    ours: Variants, theirs: Variants, first: NDArray[np.intp], second: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp], int]:
    """Return the pairs of variants, other than the given ones, with the same chromosome, position and alleles, on either strand.

    A variant that has several counterparts, as other variants of its position have unknown alleles, is left out. The last value is the
    number of variants of the second side with a position of the first and other alleles.
    """
    tables = []
    for variants, numbers, name in ((ours, first, "first"), (theirs, second, "second")):
        free = np.ones(len(variants.name), bool)
        free[numbers] = False
        chromosomes = pd.Series(variants.chromosome[free].astype(str)).str.replace("^chr", "", case=False, regex=True)
        chromosomes = chromosomes.str.upper().replace(_CHROMOSOMES)
        table = pd.DataFrame({"chromosome": chromosomes, "position": variants.position[free], name: np.flatnonzero(free)})
        tables.append(table[~chromosomes.isin(_NO_CHROMOSOME) & (table["position"] > 0)])
    shared = tables[0].merge(tables[1], on=["chromosome", "position"])
    alleles = _Alleles.of(ours, theirs, shared["first"].to_numpy(np.intp), shared["second"].to_numpy(np.intp))
    found = shared[alleles.same | alleles.swapped | alleles.flipped]
    apart = len({*shared["second"]} - {*found["second"]})
    found = found[~found["first"].duplicated(keep=False) & ~found["second"].duplicated(keep=False)]
    return found["first"].to_numpy(np.intp), found["second"].to_numpy(np.intp), apart


@dataclass(frozen=True, eq=False)
class _Alleles:
    """Comparison of the alleles of pairs of variants (c,); an unknown allele is like any."""

    same: NDArray[np.bool_]
    swapped: NDArray[np.bool_]
    """The same strand and the other order, unless the alleles are the same in this order, too."""
    flipped: NDArray[np.bool_]
    """The other strand alone, in any order."""
    turned: NDArray[np.bool_]
    """The other order, on any strand."""
    palindromic: NDArray[np.bool_]
    """Alleles that are each other's complements."""

    @classmethod
    def of(cls, ours: Variants, theirs: Variants, first: NDArray[np.intp], second: NDArray[np.intp]) -> _Alleles:
        codes, unknown, complements = _allele_codes(ours.A1[first], ours.A2[first], theirs.A1[second], theirs.A2[second])
        a1, a2, b1, b2 = codes

        def agree(a: NDArray[np.intp], b: NDArray[np.intp]) -> NDArray[np.bool_]:
            return np.asarray((a == b) | unknown[a] | unknown[b], bool)

        same = agree(a1, b1) & agree(a2, b2)
        swapped = agree(a1, b2) & agree(a2, b1) & ~same
        c1, c2 = complements[b1], complements[b2]
        straight = agree(a1, c1) & agree(a2, c2) & ~same & ~swapped
        crossed = agree(a1, c2) & agree(a2, c1) & ~same & ~swapped & ~straight
        palindromic = ((complements[a1] == a2) & ~unknown[a1]) | ((complements[b1] == b2) & ~unknown[b1])
        return cls(same, swapped, straight | crossed, swapped | crossed, palindromic)


def _allele_codes(*sides: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.bool_], NDArray[np.intp]]:
    """Return the alleles of each side as numbers; of each number whether its allele is unknown, and the number of its complement."""
    numbers, texts = pd.factorize(np.concatenate([np.char.upper(side.astype(str)) for side in sides]))
    numbered = {text: number for number, text in enumerate(texts)}
    none = len(texts)  # for alleles without a complement, or whose complement no side has
    others = [text if text in _UNKNOWN_ALLELES else text.translate(_BASES)[::-1] if {*text} <= {*"ACGT"} else None for text in texts]
    complements = np.array([numbered.get(text, none) for text in others] + [none], np.intp)
    return numbers.reshape(len(sides), -1), np.append(np.isin(texts, _UNKNOWN_ALLELES), False), complements


def _compare(name: str, ours: Variants, i: int, theirs: Variants, j: int) -> str:
    return f"{name!r} ({theirs.A1[j]}, {theirs.A2[j]}; in the model {ours.A1[i]}, {ours.A2[i]})"


def _compare_frequencies(
    fitted: Sequence[str], ours: NDArray[np.intp], theirs: NDArray[np.float64], observed: NDArray[np.int64], known: NDArray[np.float64]
) -> None:
    """Warn of SNPs whose frequencies are far from those of the fitted data, beyond the sampling of few individuals."""
    with np.errstate(invalid="ignore", divide="ignore"):
        alleles = _PLOIDY * observed
        far = np.flatnonzero(np.abs(theirs - known) > _FAR + _ERRORS * np.sqrt(known * (1 - known) / alleles) + 1 / alleles)
    if far.size:
        named = ", ".join(f"{fitted[ours[i]]!r} {theirs[i]:.2f} and {known[i]:.2f}" for i in far[:_NAMED])
        text = f"frequencies of {far.size} of {len(ours)} SNPs disagree in X and in the fitted data: {named}"
        text += ", …" if far.size > _NAMED else ""
        warn(f"{text}; check their alleles and strands, or leave them out")


def chromosome_borders(m: int, variants: Variants | None) -> NDArray[np.intp]:
    """Return the first SNP of each run of SNPs with one chromosome, and the number of SNPs m (runs + 1,)."""
    changes = np.empty(0, np.intp) if variants is None else np.flatnonzero(variants.chromosome[1:] != variants.chromosome[:-1]) + 1
    return np.concatenate([[0], changes, [m]]).astype(np.intp)
