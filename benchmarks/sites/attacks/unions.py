"""Attacks by two sets of rows that differ in a person, and by columns that tell this person apart."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import dfact
from benchmarks.sites.attacks.harness import Array, Outcome, answers, attack, coordinator, matches
from dfact.data.coerce import as_dataset
from dfact.data.confounders import PlausibleRange
from dfact.sites.contract import contract_of

N, M = 500, 10


def fitted_moments(sites: dict[str, Any], words: list[str], **settings: Any) -> Any:
    """Fit a factor to sites, and return the moments that have arrived from north; None if none have."""
    with coordinator(sites, **settings) as attacker:
        attacker.fit(dfact.FactorAnalysis(1, rotation=None))
        words.append(attacker.words)
        sums = attacker.sums("moments")
    return sums[0] if sums else None


def shift_of(rows: Array) -> Array:
    return (np.nanmin(rows, axis=0) + np.nanmax(rows, axis=0)) / 2


@attack("a person joins", honest=True, quick=True)
def a_person_joins() -> Outcome:
    """Fit before and after a person has joined a site that keeps its log: the difference of the sums is the person's answers."""
    return _joined(N + 1)


@attack("a person leaves, other path", honest=True, quick=True)
def a_person_leaves() -> Outcome:
    """The same after a person has left, with the data stored anew at another path, and its rows in another order."""
    return _joined(N - 1)


def _joined(n: int) -> Outcome:
    words: list[str] = []
    north, south = answers(N + 1, M, 1), answers(N, M, 2)
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for number, size in enumerate((N, n)):
            rows = north[:size] if number == 0 else north[:size][::-1].copy()
            data = dfact.import_array(rows.astype(np.uint8), f"{folder}/{number}.zarr", valid_range=(0, 4))
            other = dfact.import_array(south.astype(np.uint8), f"{folder}/south {number}.zarr", valid_range=(0, 4))
            log = Path(folder) / "log.jsonl"
            found.append(fitted_moments({"north": data, "south": other}, words, contract=contract_of(data), logs={"north": log}))
    if found[0] is None or found[1] is None:
        return Outcome(0, 1, words[-1])
    person = abs(found[1].sums.diagonal() - found[0].sums.diagonal())
    truth = north[max(n, N) - 1]
    shifts = [np.full(M, 2.0), shift_of(north)]
    return Outcome(int(any(np.allclose(person, abs(truth - each), atol=1e-3) for each in shifts)), 1, words[-1])


@attack("gaps that differ in one person", honest=True, quick=True)
def gaps_that_differ() -> Outcome:
    """Two items that twenty persons skipped, all the same except one: sums over those who answered one, less those over the others."""
    north, south = answers(N, M, 1), answers(N, M, 2)
    north[100:120, 3], north[101:121, 4] = np.nan, np.nan
    found = 0
    with coordinator({"north": north, "south": south}) as attacker:
        for fit in (
            lambda: attacker.fit(dfact.FactorAnalysis(1, rotation=None)),
            attacker.describe,
            lambda: attacker.fit(dfact.PCA(1, missing="mean")),
        ):
            fit()
        for sums in [*attacker.sums("moments"), *attacker.sums("pca_pairs")]:
            difference = sums.sums[:, 4] - sums.sums[:, 3]  # of those with item 3 missing alone, less those with item 4 missing alone
            person, kept = north[100] - north[120], [0, 1, 2, 5, 6, 7, 8, 9]
            found += np.allclose(difference[kept], person[kept], atol=1e-3)
        words = attacker.words
    return Outcome(int(bool(found)), 1, words)


@attack("almost equal confounders", honest=True, quick=True)
def almost_equal_confounders() -> Outcome:
    """Subtract the products of two confounders that are the same for all but one person, such as the years at two visits."""
    rng = np.random.default_rng(0)
    north, south = answers(N, M, 1), answers(N, M, 2)
    first = {"north": rng.integers(20, 80, N).astype(float), "south": rng.integers(20, 80, N).astype(float)}
    second = {name: values.copy() for name, values in first.items()}
    second["north"][77] += 30 if second["north"][77] < 50 else -30

    def data(values: Array, *names: str) -> Any:
        tables = [np.concatenate([each[name] for name in names]) for each in (first, second)]
        found = as_dataset(values, pd.DataFrame({"first": tables[0], "second": tables[1]}))
        return replace(found, confounder_ranges=dict.fromkeys(("first", "second"), PlausibleRange(0, 100)))

    contract = contract_of(data(np.vstack([north, south]), "north", "south"))
    with coordinator({"north": data(north, "north"), "south": data(south, "south")}, contract=contract) as attacker:
        attacker.fit(dfact.ICQF(1, max_iter=1))
        sums, words = attacker.sums("bounded_nmf"), attacker.words
    if not sums:
        return Outcome(0, 1, words)
    found = 0
    columns = range(len(sums[0].cross))
    for i in columns:
        for j in columns:
            difference = sums[0].cross[i].astype(float) - sums[0].cross[j]
            for scale in (0.3, -0.3):  # ranges from 0 to 100 become 0 to 1
                found += bool((matches(np.rint(difference / scale), north) == 77).any()) and np.abs(difference / scale).max() < 4.5
    return Outcome(int(bool(found)), 1, words)


@attack("one of a rare level of two", honest=True, quick=True)
def rare_pair() -> Outcome:
    """Read tables of two items for pairs of answers that one person gave, by polychoric correlations and by numbers of answers."""
    north, south = answers(N, 6, 1, levels=3), answers(N, 6, 2, levels=3)
    north[:, 1] = np.where(north[:, 0] == 2, 2, north[:, 1])
    north[5, :2] = 2, 0
    with coordinator({"north": north, "south": south}) as attacker:
        attacker.fit(dfact.FactorAnalysis(1, rotation=None, correlation="polychoric"))
        attacker.describe(correlation="polychoric")
        tables, words = attacker.sums("counted_tables"), attacker.words
    small = any(((each.counts > 0) & (each.counts < 10)).any() for each in tables)
    return Outcome(int(small), 1, words)


@attack("a pair of two-valued items", honest=True, quick=True)
def two_valued_pair() -> Outcome:
    """Read the products of two-valued items: they are numbers of persons with both, which may be one."""
    rng = np.random.default_rng(0)
    north, south = ((rng.random((N, 6)) < 0.2).astype(np.float32) for _ in range(2))
    north[:, 1] *= 1 - north[:, 0]
    north[7, :2] = 1
    with coordinator({"north": north, "south": south}) as attacker:
        attacker.fit(dfact.NMF(1, max_iter=1))
        attacker.fit(dfact.FactorAnalysis(1, rotation=None))
        grams, words = attacker.sums("svd_gram"), attacker.words
        moments = attacker.sums("moments")
    pairs = [each.gram[0, 1] for each in grams]
    pairs += [each.cross[0, 1] + 0.5 * (each.sums[0, 1] + each.sums[1, 0]) + 0.25 * each.counts[0, 1] for each in moments]
    return Outcome(int(any(0.5 < pair < 9.5 for pair in pairs)), 1, words)


@attack("rows as vertices", honest=True, quick=True)
def rows_as_vertices() -> Outcome:
    """Ask for the models that look for single rows: GradeOfMembership, and Admixture from its spectral start."""
    genotypes = np.random.default_rng(0).integers(0, 3, (2 * N, 30)).astype(np.float32)
    words = []
    with coordinator({"north": genotypes[:N], "south": genotypes[N:]}) as attacker:
        for model in (dfact.GradeOfMembership(2), dfact.Admixture(2)):
            attacker.fit(model)
        rows = [array for message in attacker.messages() for array in message.arrays if array.ndim == 2 and array.shape[-1] == 30]
        words = attacker.refused
    found = sum(matches(row, genotypes[:N]).size for array in rows for row in array)
    return Outcome(min(found, N), N, words[0] if words else "not refused")
