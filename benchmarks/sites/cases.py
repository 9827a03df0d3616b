"""The data of the sites, what is computed across them, and the same on the concatenated data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dfact
from dfact.data.confounders import as_frame
from dfact.models.estimator import Factorization
from dfact.selection.result import Selection
from dfact.sites.contract import write_contract
from dfact.sites.row_sets import deal_rows

SITES = ("east", "north", "south")
ANSWERS, TENSOR, WEIGHTED = "answers", "tensor", "weighted"
DEPTH = 5
"""Length of the last mode of the tensor, whose slices are the rows of the answers."""
MISSING, HIGHEST = 9, 3
LABEL = "PERSON"
"""Begins every row label."""
AGE, AGES = "age", (20.0, 90.0)
CANARY_ROW = 7
"""A row of each site whose answers and whose age no other row has."""
GRID: dict[str, Any] = {"n_components": [2, 3]}
BLOCKS: dict[str, Any] = {"n_blocks": (3, 3), "n_folds": 3, "random_state": 0}
KEY = "5a" * 32
"""The key of every site in each of its runs, by which the pooled selection has the same blocks."""
Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A command across sites, and the same on data in one place."""

    name: str
    command: tuple[str, ...]
    """Words after ``dfact``, without the file of the sites and the output."""
    model: Callable[..., Any] | None = None
    """The model of a fit, or that of a selection; none for a description."""
    data: str = ANSWERS
    options: tuple[str, ...] = ()

    def pooled(self, whole: Any, **settings: Any) -> Any:
        """Return the result on the concatenated data."""
        if self.model is None:
            return dfact.describe(whole, **settings)
        if self.command[0] == "fit":
            return self.model(**settings).fit(whole)
        drawn = {"groups": drawn_blocks(whole), "stratify": np.zeros(whole.shape[0])}
        return dfact.selection.block_cross_validate(self.model(**settings), whole, GRID, **BLOCKS, **drawn, in_memory=False)


def _fit(name: str, command: str, options: str, model: Callable[..., Any], data: str = ANSWERS) -> Case:
    return Case(name, ("fit", command), model, data, tuple(options.split()))


ICQF = _fit("ICQF", "icqf", "-k 4 --max-iter 20", lambda **s: dfact.ICQF(4, max_iter=20, **s))
CASES = (
    ICQF,
    _fit("NMF", "nmf", "-k 4 --max-iter 20", lambda **s: dfact.NMF(4, max_iter=20, **s)),
    _fit("FactorAnalysis", "fa", "-k 4", lambda **s: dfact.FactorAnalysis(4, **s)),
    _fit(
        "FactorAnalysis, polychoric",
        "fa",
        "-k 4 --correlation polychoric",
        lambda **s: dfact.FactorAnalysis(4, correlation="polychoric", **s),
    ),
    _fit("FactorAnalysis, weighted", "fa", "-k 4", lambda **s: dfact.FactorAnalysis(4, **s), WEIGHTED),
    _fit("PCA", "pca", "-k 4", lambda **s: dfact.PCA(4, **s)),
    _fit("ExpectileMF", "emf", "-k 4 --ridge 0.1 --max-iter 20", lambda **s: dfact.ExpectileMF(4, ridge=0.1, max_iter=20, **s)),
    _fit(
        "ElasticCP",
        "cp",
        "-k 4 --lam 0.5 --max-iter 20 --seed 0",
        lambda **s: dfact.ElasticCP(4, lam=0.5, max_iter=20, random_state=0, **s),
        TENSOR,
    ),
    _fit(
        "Admixture",
        "admixture",
        "-k 4 --ploidy 3 --init random --seed 0 --max-iter 20",
        lambda **s: dfact.Admixture(4, ploidy=3, init="random", random_state=0, max_iter=20, **s),
    ),
    Case(
        "select ICQF",
        ("select", "icqf"),
        dfact.ICQF,
        options=("-k", "2-3", "--blocks", "3x3", "--folds", "3", "--seed", "0"),
    ),
    Case("describe", ("describe",)),
)


def drawn_blocks(whole: Any) -> Array:
    """Return the blocks that the sites of the concatenated data draw for their rows with the key of this benchmark."""
    sizes, blocks = whole.source.segments, []
    for first, size in zip(np.cumsum([0, *sizes]), sizes, strict=False):
        labels = range(size) if whole.label_source is None else whole.row_labels[first : first + size]
        blocks.append(deal_rows(labels, bytes.fromhex(KEY), BLOCKS["n_blocks"][0]))
    return np.concatenate(blocks)


def site_answers(rows: int, columns: int, seed: int) -> Array:
    """Return answers from 0 to 3 that four factors explain in part, a twentieth of them missing. One row is random and complete."""
    rng = np.random.default_rng(seed)
    loadings = np.random.default_rng(0).uniform(0, 0.7, (4, columns))
    latent = rng.normal(0, 1, (rows, 4)) @ loadings + rng.normal(0, 1, (rows, columns))
    found = np.digitize(latent, [-1, 0, 1]).astype(np.uint8)
    found[rng.random(found.shape) < 0.05] = MISSING
    found[CANARY_ROW] = rng.integers(0, HIGHEST + 1, columns)
    return found


def canary_age(site: str) -> float:
    """Return the age of a site's planted row, with digits that no other age has."""
    return 47.123456789 + SITES.index(site) / 7


def canary_label(site: str) -> str:
    return f"{LABEL}-{site}-{CANARY_ROW}"


def write_site(folder: Path, site: str, rows: int, columns: int) -> None:
    """Write the datasets of a site to its own disk."""
    number = SITES.index(site)
    values, rng = site_answers(rows, columns, 1 + number), np.random.default_rng([7, number])
    age = rng.normal(50, 10, rows).clip(*AGES)
    age[:2] = AGES  # sites scale by the range of the contract, the pooled fit by that of the data
    age[CANARY_ROW] = canary_age(site)
    settings: dict[str, Any] = {
        "missing": MISSING,
        "valid_range": (0, HIGHEST),
        "row_labels": [f"{LABEL}-{site}-{row}" for row in range(rows)],
    }
    confounders = as_frame({AGE: age}, rows)
    dfact.import_array(values, folder / f"{ANSWERS}.zarr", confounders=confounders, confounder_ranges={AGE: AGES}, **settings)
    dfact.import_array(values.reshape(rows, -1, DEPTH), folder / f"{TENSOR}.zarr", **settings)
    dfact.import_array(values, folder / f"{WEIGHTED}.zarr", weights=rng.gamma(4, 1, rows), **settings)
    for data in (ANSWERS, TENSOR, WEIGHTED):
        write_contract(dfact.open_dataset(folder / f"{data}.zarr"), folder / f"{data}.json")


def across(case: Case, sites: Any) -> Any:
    """Return the result of a case across sites that have joined; ``sites`` has the methods of :class:`dfact.Sites`."""
    if case.model is None:
        return sites.describe()
    return sites.fit(case.model()) if case.command[0] == "fit" else sites.select(case.model(), GRID, **BLOCKS)


def shared_arrays(result: Any, rows: int) -> dict[str, Array]:
    """Return the numbers of a description, or the arrays of a model that do not belong to its rows, and the scores of its selection."""
    if isinstance(result, Selection):
        result = result.model
    if not isinstance(result, Factorization):
        return {name: result.items[name].to_numpy() for name in result.items.select_dtypes("number")}
    listed = {name: value if isinstance(value, list) else [value] for name, value in vars(result).items() if name.endswith("_")}
    listed["components_"] = [result.components_]
    if (selection := getattr(result, "selection_", None)) is not None:
        listed["selection"] = [selection.scores, selection.errors]
    arrays = {f"{name} {i}": value for name, values in listed.items() for i, value in enumerate(values) if isinstance(value, np.ndarray)}
    return {name: value for name, value in arrays.items() if value.dtype.kind in "fiub" and len(value) not in {0, rows}}


def row_factors(result: Any) -> Array:
    """Return the row factors of a model, or of the selected one."""
    return np.asarray((result.model if isinstance(result, Selection) else result).row_factors())


def same_result(found: Any, expected: Any, rows: int) -> bool:
    """Return whether the result across sites has the bits of that on the concatenated data."""
    return same_bits(shared_arrays(found, 0), shared_arrays(expected, rows))


def same_bits(found: Mapping[str, Array], expected: Mapping[str, Array]) -> bool:
    """Return whether both have the same arrays, bit for bit, and any."""
    if not found or found.keys() != expected.keys():
        return False
    pairs = [(found[name], expected[name]) for name in expected]
    return all(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs)


def description_text(result: Any, path: Path) -> str:
    """Return the items of a description as the command writes them."""
    from dfact.questionnaires.tables import write_description

    write_description(result, path, table="items", style=None, overwrite=True)
    return path.read_text()
