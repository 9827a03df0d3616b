"""Small stores of each kind: datasets, models, and interrupted fits, selections and jobs.

Every version of dfact since the first datasets runs those of these recipes that it has the features for. They use only what is
imported here, and arguments that never changed their names.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

import dfact

Arrays = dict[str, NDArray[Any]]
N, M = 24, 6
ITEMS = [f"Q{j}" for j in range(M)]
LEVELS = ["never", "rarely", "sometimes", "often", "always"]


def given_answers() -> NDArray[np.float64]:
    """Return answers from 1 to 5 of two factors (N, M), some missing."""
    rng = np.random.default_rng(1)
    answers = np.clip(np.rint(1 + 4 * rng.random((N, 2)) @ rng.random((2, M)) + rng.normal(0, 0.4, (N, M))), 1, 5)
    answers[rng.random((N, M)) < 0.05] = np.nan
    return answers


AGES = np.random.default_rng(2).integers(18, 80, N)
SEXES = np.array(["f", "m"] * (N // 2))
WEIGHTS = 1.0 + np.arange(N) % 3
POPULATIONS = ["north", "south", "-"] * (N // 3)


def write_table(path: Path, answers: NDArray[Any]) -> Path:
    """Write a csv file with the answers, which are texts."""
    lines = [",".join(["person", "age", "sex", "weight", *ITEMS])]
    lines += [",".join([f"p{i}", str(AGES[i]), SEXES[i], str(WEIGHTS[i]), *row]) for i, row in enumerate(answers)]
    path.write_text("\n".join(lines) + "\n")
    return path


def answers(folder: Path, name: str = "answers.zarr", **settings: Any) -> Arrays:
    """Import answers with labels, confounders and two missing codes."""
    given = given_answers()
    codes = np.where(np.arange(N)[:, None] % 2, "0", "-9")
    source = write_table(folder / "answers.csv", np.where(np.isnan(given), codes, np.nan_to_num(given).astype(int).astype(str)))
    settings = {"missing": [0, -9], "valid_range": (1, 5), "id_column": "person", "confounders": ["age", "sex"]} | settings
    dfact.import_table(source, folder / name, items="Q*", **settings)
    source.unlink()
    return {"values": given, "age": AGES, "sex": SEXES}


def weighted(folder: Path) -> Arrays:
    return answers(folder, name="weighted.zarr", weight="weight") | {"weights": WEIGHTS}


def matrix(folder: Path) -> Arrays:
    rng = np.random.default_rng(3)
    values = rng.random((N, 2)) @ rng.random((2, M)) + rng.lognormal(-2, 1, (N, M))
    values[rng.random((N, M)) < 0.1] = np.nan
    dfact.import_array(values, folder / "matrix.zarr", column_labels=ITEMS)
    return {"values": values}


def sparse(folder: Path) -> Arrays:
    rng = np.random.default_rng(4)
    values = np.where(rng.random((N, M)) < 0.4, rng.random((N, M)), 0.0)
    values[:, 0] = 1.0
    dfact.import_array(sp.csr_array(values), folder / "sparse.zarr")
    return {"values": values}


def tensor(folder: Path) -> Arrays:
    rng = np.random.default_rng(5)
    A, B, C = (rng.normal(size=(size, 2)) for size in (12, 5, 4))
    values = np.einsum("ir,jr,kr->ijk", A, B, C) + rng.normal(0, 0.1, (12, 5, 4))
    values[rng.random(values.shape) < 0.05] = np.nan
    dfact.import_array(values, folder / "tensor.zarr")
    return {"values": values}


def seasons(folder: Path) -> Arrays:
    """A tensor whose third mode has labels."""
    values = np.random.default_rng(6).random((8, 4, 3))
    dfact.import_array(values, folder / "seasons.zarr", mode_labels=[["spring", "summer", "winter"]])
    return {"values": values}


def levels(folder: Path) -> Arrays:
    """Import answers that are texts, which become a codebook, with a range of a confounder."""
    given = given_answers()
    texts = np.array(["", *LEVELS], dtype=object)[np.nan_to_num(given).astype(int)]
    source = write_table(folder / "levels.csv", texts)
    ranges = {"age": (10.0, 90.0)}
    dfact.import_table(source, folder / "levels.zarr", items="Q*", levels=LEVELS, confounders=["age"], confounder_ranges=ranges)
    source.unlink()
    return {"values": given, "age": AGES}


def genotypes(folder: Path) -> Arrays:
    """Import a .bed file: 2 bits for each genotype, 00 for two A1, 10 for A1 and A2, 11 for two A2, 01 for a missing one."""
    rng, m = np.random.default_rng(7), 30
    counts = rng.binomial(2, rng.dirichlet([0.3, 0.3], N) @ rng.random((2, m))).astype(float)
    counts[rng.random((N, m)) < 0.03] = np.nan
    codes = np.where(np.isnan(counts), 1, np.array([0, 2, 3])[np.nan_to_num(counts).astype(int)])
    packed = (codes.T.reshape(m, N // 4, 4) << np.array([0, 2, 4, 6])).sum(axis=2).astype(np.uint8)
    source = folder / "cohort.bed"
    source.write_bytes(b"\x6c\x1b\x01" + packed.tobytes())
    source.with_suffix(".bim").write_text("".join(f"1\trs{j}\t0\t{1000 + j}\tC\tT\n" for j in range(m)))
    source.with_suffix(".fam").write_text("".join(f"f{i} p{i} 0 0 0 -9\n" for i in range(N)))
    source.with_suffix(".pop").write_text("".join(f"{name}\n" for name in POPULATIONS))
    dfact.import_genotypes(source, folder / "genotypes.zarr")
    for suffix in (".bed", ".bim", ".fam", ".pop"):
        source.with_suffix(suffix).unlink()
    return {"values": counts}


@dataclass(frozen=True)
class Fit:
    """A fit of a model to one of the datasets."""

    model: str
    dataset: str
    passes: int
    """Number of passes after which the fit is interrupted; 0 for a model without the parameter ``checkpoint_every``."""
    parameters: dict[str, Any]

    def estimator(self) -> Any:
        return getattr(dfact, self.model)(**self.parameters)

    def fit(self, folder: Path, **settings: Any) -> Any:
        return self.estimator().fit(folder / self.dataset, **settings)

    def save(self, folder: Path, name: str) -> Arrays:
        """Save the fitted model, and return its loadings and the factors of its rows."""
        model = self.fit(folder)
        dfact.save_model(model, folder / name)
        return figures(model, folder / self.dataset)

    def interrupt(self, folder: Path, name: str) -> Arrays:
        """Leave the checkpoint of an interrupted fit, and return what the fit would have ended with."""
        with interruption(self.passes):
            self.estimator().set_params(checkpoint_every=1).fit(folder / self.dataset, checkpoint=folder / name)
        return figures(self.fit(folder), folder / self.dataset)


def figures(model: Any, data: Path) -> Arrays:
    """Return the loadings and the factors of the rows."""
    return {"loadings": model.loadings_.to_numpy(np.float64), "transform": np.asarray(model.transform(data), np.float64)}


FITS = {
    "icqf": Fit("ICQF", "answers.zarr", 8, {"n_components": 2, "max_iter": 15}),
    "icqf_admm": Fit("ICQF", "answers.zarr", 6, {"n_components": 2, "max_iter": 8, "solver": "admm"}),
    "icqf_levels": Fit("ICQF", "levels.zarr", 6, {"n_components": 2, "max_iter": 10}),
    "icqf_weighted": Fit("ICQF", "weighted.zarr", 6, {"n_components": 2, "max_iter": 10}),
    "l1nmf": Fit("L1NMF", "matrix.zarr", 6, {"n_components": 2, "max_iter": 10}),
    "expectile": Fit("ExpectileMF", "matrix.zarr", 5, {"n_components": 2, "tau": 0.3, "ridge": 0.1, "max_iter": 10}),
    "expectile_sparse": Fit("ExpectileMF", "sparse.zarr", 5, {"n_components": 2, "tau": 0.6, "ridge": 0.1, "max_iter": 10}),
    "gom": Fit("GradeOfMembership", "answers.zarr", 2, {"n_components": 2, "random_state": 0}),
    "gom_likelihood": Fit(
        "GradeOfMembership", "answers.zarr", 8, {"n_components": 2, "likelihood": "binomial", "max_iter": 6, "random_state": 0}
    ),
    "cp": Fit("ElasticCP", "tensor.zarr", 5, {"n_components": 2, "lam": 0.01, "max_iter": 10, "random_state": 0}),
    "cp_seasons": Fit("ElasticCP", "seasons.zarr", 5, {"n_components": 2, "lam": 0.01, "max_iter": 10, "random_state": 0}),
    "cp_als": Fit("CPALS", "tensor.zarr", 0, {"n_components": 2, "max_iter": 10, "random_state": 0}),
    "factor_analysis": Fit("FactorAnalysis", "answers.zarr", 0, {"n_components": 2}),
    "polychoric": Fit("FactorAnalysis", "answers.zarr", 0, {"n_components": 2, "correlation": "polychoric"}),
    "nmf": Fit("NMF", "sparse.zarr", 6, {"n_components": 2, "alpha_W": 0.001, "max_iter": 10}),
    "nmf_divergence": Fit("NMF", "sparse.zarr", 4, {"n_components": 2, "loss": "kullback-leibler", "max_iter": 10}),
    "pca": Fit("PCA", "matrix.zarr", 3, {"n_components": 2, "scale": "standard"}),
    "admixture": Fit("Admixture", "genotypes.zarr", 6, {"n_components": 2, "max_iter": 10, "random_state": 0}),
}


def bootstrap(folder: Path, **settings: Any) -> Arrays:
    stability = dfact.selection.bootstrap(FITS["icqf"].fit(folder), folder / "answers.zarr", 4, random_state=0, **settings)
    return {"mean": stability.mean}


def cross_validation(folder: Path, **settings: Any) -> Arrays:
    grid, data = {"n_components": [1, 2], "beta": [0.1]}, folder / "answers.zarr"
    selection = dfact.selection.block_cross_validate(dfact.ICQF(max_iter=10), data, grid, (4, 2), 2, random_state=0, **settings)
    return {"error": selection.table["error"].to_numpy()}


def held_out(folder: Path, **settings: Any) -> Arrays:
    model, data = dfact.ExpectileMF(tau=0.3, ridge=0.1, max_iter=8), folder / "matrix.zarr"
    selection = dfact.selection.select_by_held_out(model, data, {"n_components": [1, 2]}, n_repeats=2, random_state=0, **settings)
    return {"error": selection.table["median"].to_numpy()}


SELECTIONS: dict[str, Callable[..., Arrays]] = {recipe.__name__: recipe for recipe in (bootstrap, cross_validation, held_out)}


def interrupt_selection(select: Callable[..., Arrays], folder: Path, name: str) -> Arrays:
    """Leave the checkpoint of a selection that was interrupted after some fits, and return its result."""
    reports: list[Any] = []

    def stop(report: Any) -> None:
        reports.append(report)
        if len(reports) == 3:
            raise Interruption

    with suppress(Interruption):
        select(folder, checkpoint=folder / name, callbacks=[stop])
        raise AssertionError(f"{name} was not interrupted")
    return select(folder)


FIRST_STEP, SECOND_STEP = (
    f'[[step]]\nrun = "fit icqf"\ndata = "answers.zarr"\nmodel = "{name}.model"\ncomponents = {k}\nmax-iter = 10\ncheckpoint-every = 1\n'
    for name, k in (("two", 2), ("three", 3))
)


def job(folder: Path) -> Arrays:
    """Leave the record of a job of two fits, of which the second was interrupted, and return the loadings of its model."""
    from dfact.cli.main import main

    path = folder / "job.toml"
    path.write_text(FIRST_STEP)
    assert main(["run", str(path)]) == 0
    path.write_text(FIRST_STEP + SECOND_STEP)
    with interruption(5):
        main(["run", str(path)])
    model = dfact.ICQF(3, max_iter=10).fit(folder / "answers.zarr")
    return {"loadings": model.loadings_.to_numpy(np.float64)}


class Interruption(BaseException):
    """What stops a computation before its end, as a signal does."""


@contextmanager
def interruption(passes: int) -> Iterator[None]:
    """Interrupt a fit with a checkpoint after a number of passes."""
    from dfact.engine.checkpoint import CheckpointedSession

    original, done = CheckpointedSession.run, 0

    def run(session: Any, *args: Any) -> Any:
        nonlocal done
        sums, done = original(session, *args), done + 1
        if done == passes:
            raise Interruption
        return sums

    CheckpointedSession.run = run  # type: ignore[method-assign]
    try:
        with suppress(Interruption):
            yield
        assert done == passes, f"the fit ended after {done} passes"
    finally:
        CheckpointedSession.run = original  # type: ignore[method-assign]


RECIPES: dict[str, Callable[[Path], Arrays]] = {
    f"{recipe.__name__}.zarr": recipe for recipe in (answers, weighted, matrix, sparse, tensor, seasons, levels, genotypes)
}
"""Recipes by the name of what they leave in a folder, in their order: fits need the datasets."""
RECIPES |= {f"{name}.model": partial(fit.save, name=f"{name}.model") for name, fit in FITS.items()}
RECIPES |= {f"{name}.checkpoint": partial(fit.interrupt, name=f"{name}.checkpoint") for name, fit in FITS.items() if fit.passes}
RECIPES |= {f"{name}.checkpoint": partial(interrupt_selection, select, name=f"{name}.checkpoint") for name, select in SELECTIONS.items()}
RECIPES["job.toml"] = job
