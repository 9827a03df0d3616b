"""The variants of an import: those of the wanted chromosomes that pass their filters, and what makes a variant invalid."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.errors import DataError, ParameterError
from dfact.genetics.genotype_file import GenotypeFile
from dfact.genetics.kernels import HAPLOID, POLYPLOID

_SEX_AND_MITOCHONDRIA = {"X", "Y", "XY", "MT", "M", "PAR", "PAR1", "PAR2", "23", "24", "25", "26"}
_NAMES = {"23": "X", "24": "Y", "25": "XY", "26": "MT", "M": "MT"}
EMPTY, MULTIALLELIC = "no genotype of any individual", "more than two alleles"


@dataclass(frozen=True)
class Rules:
    """The variants that an import takes, and those that it drops."""

    chromosomes: Sequence[str] | None = None
    """Names or ranges such as "1-22" and "X"; ("all",) for all; None for autosomes."""
    keep_failing: bool = False
    """Whether variants that fail a filter are taken."""
    dropped: Collection[str] = field(default_factory=tuple)
    """Kinds of invalid variants that are dropped."""
    drop_invalid: bool = False
    """Whether those of all kinds are dropped."""


def select_variants(file: GenotypeFile, empty: NDArray[np.bool_], rules: Rules, note: Callable[[str], object] | None) -> NDArray[np.intp]:
    """Return the numbers of the variants to write; ``empty`` are those without any genotype.

    Raises
    ------
    DataError
        Variants are invalid, or none is left.
    """
    table = file.variants
    chosen, said = _choose_chromosomes(file.name, table["chromosome"], rules.chromosomes)
    if said and note is not None:
        note(said)
    failing = file.failing & chosen
    if failing.any() and not rules.keep_failing:
        chosen &= ~failing
        if note is not None:
            note(f"left out {failing.sum()} variant(s) that fail a filter of the file; --keep-failing takes them")
    kinds = [*_invalid(file, chosen, empty)]
    refused = [text for kind, numbers, text in kinds if numbers.size and not (rules.drop_invalid or kind in rules.dropped)]
    if refused:
        total = len(np.unique(np.concatenate([numbers for _, numbers, _ in kinds])))
        found = f"{file.name}: {total} of {chosen.sum()} variants are invalid, expected none: {'; '.join(refused)}"
        raise DataError(f"{found}; correct them, or drop them: drop_invalid=True (--drop-invalid)")
    for _, numbers, text in kinds:
        chosen[numbers] = False
        if numbers.size and note is not None:
            note(f"dropped {text}")
    kept = np.flatnonzero(chosen)
    if not kept.size:
        found = f"{file.name} has no variants with two alleles and genotypes left, expected at least one"
        remedy = f"; {failing.sum()} variant(s) fail a filter of the file: --keep-failing takes them"
        raise DataError(found + (remedy if failing.any() and not rules.keep_failing else ""))
    return kept


def _choose_chromosomes(name: str, chromosomes: "pd.Series[str]", wanted: Sequence[str] | None) -> tuple[NDArray[np.bool_], str]:
    """Return the variants of the wanted chromosomes, and a sentence about the others."""
    plain = _plain_names(chromosomes)
    if wanted is None:
        chosen = ~plain.isin(_SEX_AND_MITOCHONDRIA).to_numpy(bool, copy=True)
        left = ", ".join(dict.fromkeys(chromosomes[~chosen].astype(str)))
        remedy = "--chromosomes all takes them"
        if not chosen.any():
            raise DataError(f"{name} has variants of {left} alone, expected autosomes; name the chromosomes: {remedy}")
        return chosen, f"left out {(~chosen).sum()} variant(s) of {left}, which are not autosomes; {remedy}" if left else ""
    names = {_NAMES.get(each, each) for part in wanted for each in _expand(part)}
    chosen = np.ones(len(plain), bool) if "ALL" in names else plain.replace(_NAMES).isin(names).to_numpy(bool, copy=True)
    if not chosen.any():
        known = ", ".join(list(dict.fromkeys(chromosomes.astype(str)))[:30])
        raise ParameterError(f"chromosomes is {','.join(wanted)!r} and {name} has {known}, expected some of these")
    return chosen, f"left out {(~chosen).sum()} variant(s) of other chromosomes" if not chosen.all() else ""


def _plain_names(chromosomes: "pd.Series[str]") -> "pd.Series[str]":
    """Return names of chromosomes in capitals without the prefix chr; scaffolds of X and Y, and accessions of NCBI, by their chromosome."""
    names = chromosomes.astype(str).str.upper().str.replace(r"^CHR(OMOSOME)?", "", regex=True)
    names = names.str.replace(r"^(X|Y|MT?)_.*$", r"\1", regex=True).str.replace(r"^NC_0000(2[34])[.].*$", r"\1", regex=True)
    return names.str.replace(r"^NC_0*([1-9]|1\d|2[0-2])[.].*$", r"\1", regex=True).str.replace(r"^NC_012920.*$", "MT", regex=True)


def _expand(part: str) -> list[str]:
    """Return the names that a name or a range of numbers stands for."""
    text = part.strip().upper().removeprefix("CHR")
    first, dash, last = text.partition("-")
    if dash and first.isdigit() and last.isdigit():
        return [str(number) for number in range(int(first), int(last) + 1)]
    return [text]


def _invalid(file: GenotypeFile, chosen: NDArray[np.bool_], empty: NDArray[np.bool_]) -> "list[tuple[str, NDArray[np.intp], str]]":
    """Return the kinds of invalid variants: name, numbers, and a text that counts them, with the first of them."""
    table, several = file.variants, file.multiallelic & chosen
    A1, A2 = table["A1"].astype(str), table["A2"].astype(str)
    symbolic = chosen & ~several & A1.str.contains(r"[<\[\]*]").to_numpy(bool)
    rest = chosen & ~several & ~symbolic
    calls = {
        kind: np.array([j for j, (found, _) in file.irregular.items() if found == kind and rest[j]], np.intp)
        for kind in (HAPLOID, POLYPLOID)
    }
    irregular = np.zeros(len(chosen), bool)
    irregular[np.concatenate([*calls.values()])] = True
    without = empty & rest & ~irregular
    keys = pd.DataFrame({"chromosome": table["chromosome"], "position": table["position"], "name": table["name"], "A1": A1, "A2": A2})
    left = np.flatnonzero(rest & ~irregular & ~without)
    repeated = left[keys.iloc[left].duplicated(keep=False).to_numpy(bool)]
    found = {
        MULTIALLELIC: np.flatnonzero(several),
        "a symbolic allele, such as * or <DEL>": np.flatnonzero(symbolic),
        "haploid calls": np.sort(calls[HAPLOID]),
        "calls of more than two alleles": np.sort(calls[POLYPLOID]),
        EMPTY: np.flatnonzero(without),
        "the name, position and alleles of others": repeated,
    }
    return [(kind, numbers, _text(file, kind, numbers)) for kind, numbers in found.items()]


def _text(file: GenotypeFile, kind: str, numbers: NDArray[np.intp]) -> str:
    """Return the number of variants of a kind, with the first: chromosome, position, name, alleles, and the individual of a call."""
    if not numbers.size:
        return ""
    j = int(numbers[0])
    row = file.variants.iloc[j]
    person = f", individual {file.irregular[j][1]!r}" if j in file.irregular else ""
    site = f"{row['chromosome']}:{row['position']} {row['name']!r} {row['A2']}>{row['A1']}{person}"
    return f"{numbers.size} variant(s) with {kind} ({'first' if numbers.size > 1 else 'it is'} {site})"


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
