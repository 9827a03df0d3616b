"""The match of genotypes with the SNPs of a model: alleles, strands, names, positions, and the order and number of SNPs."""

import gzip
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dfact
from dfact import DataError
from dfact.genetics.examples import write_bed
from tests.conftest import REAL_DATA
from tests.genetics.test_admixture import planted, read_bed

Array = NDArray[Any]
Rows = list[list[str]]
"""Lines of a .bim file, as their six fields."""
COALESCENT = REAL_DATA / "genotypes" / "coalescent"
PAIRS = ("A G", "C T", "A T", "G C", "T G", "C A")
_COMPLEMENT = str.maketrans("ACGT", "TGCA")
_SUMMARY = r".*SNPs are matched"


def table(m: int) -> Rows:
    return [[str(1 + 3 * j // m), f"rs{j}", "0", str(1000 + 10 * j), *PAIRS[j % len(PAIRS)].split()] for j in range(m)]


def swap(row: list[str]) -> list[str]:
    return [*row[:4], row[5], row[4]]


def flip(row: list[str]) -> list[str]:
    return [*row[:4], *(allele.translate(_COMPLEMENT) for allele in row[4:])]


def is_palindromic(rows: Rows) -> Array:
    return np.array([row[4].translate(_COMPLEMENT) == row[5] for row in rows])


def store(folder: Path, G: Array, rows: Rows) -> dfact.Dataset:
    number = len(list(folder.glob("*.bed")))
    bed = write_bed(folder / f"{number}.bed", np.where(np.isnan(G), 9, G).astype(np.uint8), [row[1] for row in rows])
    bed.with_suffix(".bim").write_text("".join("\t".join(row) + "\n" for row in rows))
    return dfact.import_genotypes(bed, folder / f"{number}.zarr")


Case = Callable[[Array, Rows, Array], tuple[Array, Rows, Array | None, str]]
"""Changed genotypes and lines for some chosen SNPs, the SNPs that are still used (None for all), and the counts that are printed."""


def _swapped(G: Array, rows: Rows, chosen: Array) -> Any:
    changed = [swap(row) if some else row for row, some in zip(rows, chosen, strict=True)]
    return np.where(chosen, 2 - G, G), changed, None, f"{len(rows)} SNPs are matched, {chosen.sum()} with A1 and A2 swapped$"


def _half_flipped(G: Array, rows: Rows, chosen: Array) -> Any:
    palindromic = is_palindromic(rows)
    changed = [flip(row) if some else row for row, some in zip(rows, chosen, strict=True)]
    counts = f"{(chosen & ~palindromic).sum()} on the other strand; left out are {palindromic.sum()} palindromic"
    return G, changed, ~palindromic, counts


def _all_flipped(G: Array, rows: Rows, chosen: Array) -> Any:
    return _half_flipped(G, rows, np.ones_like(chosen))


def _flipped_and_swapped(G: Array, rows: Rows, chosen: Array) -> Any:
    del chosen
    palindromic = is_palindromic(rows)
    counts = f"{(~palindromic).sum()} with A1 and A2 swapped, {(~palindromic).sum()} on the other strand; left out are"
    return 2 - G, [swap(flip(row)) for row in rows], ~palindromic, counts


def _shuffled(G: Array, rows: Rows, chosen: Array) -> Any:
    order = np.argsort(chosen, kind="stable")[::-1]
    return G[:, order], [rows[j] for j in order], None, ""


def _renamed(G: Array, rows: Rows, chosen: Array) -> Any:
    del chosen
    changed = [[f"chr{row[0]}", f"{row[0]}:{row[3]}", *row[2:]] for row in rows]
    return G, changed, None, f"{len(rows)} SNPs are matched, {len(rows)} by position$"


def _subset(G: Array, rows: Rows, chosen: Array) -> Any:
    changed = [row for row, some in zip(rows, chosen, strict=True) if some]
    return G[:, chosen], changed, chosen, f"{chosen.sum()} SNPs are matched; left out are {(~chosen).sum()} of the model that X lacks"


CASES: Sequence[Case] = (_swapped, _half_flipped, _all_flipped, _flipped_and_swapped, _shuffled, _renamed, _subset)


def check(model: Any, scores: Array, folder: Path, G: Array, rows: Rows, chosen: Array, case: Case) -> None:
    """Compare the projection of changed genotypes with that of the same ones, missing where SNPs are left out."""
    changed, lines, used, counts = case(G, rows, chosen)
    expected = G if used is None else np.where(used, G, np.nan)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = np.asarray(model.transform(store(folder, changed, lines)))
    said = [str(warning.message) for warning in caught]
    if counts:
        with pytest.warns(UserWarning, match=counts):
            warnings.warn("\n".join(said), UserWarning, stacklevel=1)
    assert len(said) == bool(counts), said
    deviation = np.abs(found - np.asarray(model.transform(expected))).max(axis=0)
    assert (deviation <= 0.01 * np.std(scores, axis=0) if isinstance(model, dfact.PCA) else deviation <= 1e-3).all()


MODELS = {
    "admixture": lambda: dfact.Admixture(2),
    "pca": lambda: dfact.PCA(2, scale="binomial"),
    "gom": lambda: dfact.GradeOfMembership(2, likelihood="binomial"),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__[1:])
def test_genotypes_are_matched_with_the_fitted_snps(name: str, case: Case, tmp_path: Path) -> None:
    _, _, X = planted(1, 90, 120, 2, missing=0.02)
    rows, chosen = table(120), np.random.default_rng(2).random(120) < 0.6
    model = MODELS[name]().fit(store(tmp_path, X[:60], rows))
    check(model, np.asarray(model.row_factors()), tmp_path, X[60:], rows, chosen, case)


@pytest.mark.further
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__[1:])
def test_a_coalescent_panel_is_matched(case: Case, tmp_path: Path) -> None:
    if not COALESCENT.is_dir():
        pytest.skip("the coalescent panel is not beside the project")
    rows = [line.split() for line in gzip.decompress((COALESCENT / "ref.bim.gz").read_bytes()).decode().splitlines()]
    m = len(rows)
    reference, new = read_bed(COALESCENT / "ref.bed", 240, m), read_bed(COALESCENT / "new_base.bed", 60, m)
    chosen = np.random.default_rng(0).random(m) < (0.7 if case is _subset else 0.5)
    dataset = store(tmp_path, reference, rows)
    for model in (dfact.Admixture(3), dfact.PCA(3, scale="binomial")):
        model.fit(dataset)
        check(model, np.asarray(model.row_factors()), tmp_path, new, rows, chosen, case)


def test_mean_filled_components_take_lacking_snps_by_expectation(tmp_path: Path) -> None:
    _, _, X = planted(1, 90, 400, 2, missing=0)
    rows, chosen = table(400), np.arange(400) % 10 < 7
    model = dfact.PCA(1, scale="binomial", missing="mean").fit(store(tmp_path, X[:60], rows))
    with pytest.warns(UserWarning, match=_SUMMARY):
        found = np.asarray(model.transform(store(tmp_path, X[60:, chosen], [rows[j] for j in np.flatnonzero(chosen)])))
    slope = np.polyfit(np.asarray(model.transform(X[60:]))[:, 0], found[:, 0], 1)[0]
    assert slope == pytest.approx(1, abs=0.1)


def test_an_update_takes_swapped_alleles_and_refuses_lacking_snps(tmp_path: Path) -> None:
    _, _, X = planted(1, 120, 120, 2, missing=0)
    rows = table(120)
    first, second = store(tmp_path, X[:60], rows), store(tmp_path, X[60:], rows)
    swapped = store(tmp_path, 2 - X[60:, ::-1], [swap(row) for row in rows[::-1]])
    for make in (MODELS["admixture"], MODELS["pca"]):
        expected, found, refused = (make().fit(first) for _ in range(3))
        with pytest.warns(UserWarning, match="60 of the new rows have labels that the model has seen"):
            expected.partial_fit(second)
        with (
            pytest.warns(UserWarning, match="60 of the new rows have labels that the model has seen"),
            pytest.warns(UserWarning, match="120 SNPs are matched, 120 with A1 and A2 swapped"),
        ):
            found.partial_fit(swapped)
        np.testing.assert_allclose(found.row_factors(), expected.row_factors(), atol=1e-4)
        with (
            pytest.warns(UserWarning, match="left out are 1 of the model that X lacks"),
            pytest.raises(DataError, match="1 of the model's 120 SNPs cannot be taken from X, expected all of them in an update"),
        ):
            refused.partial_fit(store(tmp_path, X[60:, 1:], rows[1:]))


def test_palindromic_snps_stay_where_no_strand_differs(tmp_path: Path) -> None:
    _, _, X = planted(1, 90, 120, 2, missing=0)
    rows = table(120)
    model = dfact.Admixture(2).fit(store(tmp_path, X[:60], rows))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(model.transform(store(tmp_path, X[60:], rows)), model.transform(X[60:]))


def test_frequencies_that_disagree_warn(tmp_path: Path) -> None:
    _, P, X = planted(1, 200, 120, 1, missing=0)
    rows, inverted = table(120), np.zeros(120, bool)
    inverted[np.argmax(P[0])] = inverted[np.argmin(P[0])] = True
    model = dfact.PCA(1, scale="binomial").fit(store(tmp_path, X[:100], rows))
    with pytest.warns(UserWarning, match=r"frequencies of 2 of 120 SNPs disagree in X and in the fitted data: 'rs\d+' 0\.\d\d and 0\.\d\d"):
        model.transform(store(tmp_path, np.where(inverted, 2 - X[100:], X[100:]), rows))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (1, 2, 100):  # few individuals are far from any frequency by chance
            model.transform(store(tmp_path, X[100 : 100 + n], rows))


def test_other_reference_genomes_are_refused(tmp_path: Path) -> None:
    _, _, X = planted(1, 60, 300, 2, missing=0)
    rows = table(300)
    model = dfact.PCA(1).fit(store(tmp_path, X, rows))
    moved = [[row[0], f"snp{j}", row[2], str(int(row[3]) + (7 if j else 0)), *row[4:]] for j, row in enumerate(rows)]
    with pytest.raises(DataError, match=r"X shares no names and 1 positions with the model's 300 SNPs.*the same reference genome"):
        model.transform(store(tmp_path, X, moved))


@pytest.mark.parametrize("change", ["names", "positions"])
@pytest.mark.parametrize("seed", [1, 2])
def test_names_or_positions_of_other_variants_are_refused(tmp_path: Path, change: str, seed: int) -> None:
    _, _, X = planted(seed, 60, 300, 2, missing=0)
    alleles = np.random.default_rng(seed).permuted(np.tile(np.array(["A", "C", "G", "T"]), (300, 1)), axis=1)
    rows = [[*row[:4], *alleles[j, :2]] for j, row in enumerate(table(300))]
    model = dfact.PCA(1).fit(store(tmp_path, X, rows))
    after = [*rows[1:], rows[0]]
    if change == "names":
        others = [[row[0], following[1], *row[2:]] for row, following in zip(rows, after, strict=True)]
    else:
        others = [
            [following[0], f"snp{j}", row[2], following[3], *row[4:]] for j, (row, following) in enumerate(zip(rows, after, strict=True))
        ]
    with pytest.raises(DataError, match=r"\d+ of the 300 SNPs of X with a name or a position of the model's have other alleles"):
        model.transform(store(tmp_path, X, others))
    few = [[*row[:4], "A", "AT"] if j < 9 else row for j, row in enumerate(rows)]
    with pytest.warns(UserWarning, match=r"291 SNPs are matched; left out are 9 with other alleles"):
        model.transform(store(tmp_path, X, few))


def test_datasets_that_count_other_alleles_are_not_concatenated(tmp_path: Path) -> None:
    _, _, X = planted(1, 60, 30, 2, missing=0)
    rows = table(30)
    first, second = store(tmp_path, X[:20], rows), store(tmp_path, X[20:], rows)
    joined = dfact.concatenate([first, second]).genotypes.variants
    assert joined is not None
    np.testing.assert_allclose(joined["frequency"], X.mean(axis=0) / 2)
    swapped = store(tmp_path, 2 - X[20:], [rows[0], *map(swap, rows[1:])])
    with pytest.raises(DataError, match=r"SNP 'rs1' has A1 T, A2 C, expected A1 C, A2 T \(29 of 30 SNPs differ\)"):
        dfact.concatenate([first, swapped])
