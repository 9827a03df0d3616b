"""Compile the kernels of all models for the image: fit each to small data, stored and in memory, in both precisions.

Kernels that these fits do not use, such as those of a rare option, are compiled by the process that needs them.
"""

import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import dfact

_ROWS, _ITERATIONS = 600, {"max_iter": 3}


def datasets(rng: np.random.Generator, folder: Path) -> dict[str, list[dfact.Dataset]]:
    """Return stored answers, responses, measurements and a tensor, as codes or in the precisions that they may have."""
    answers = np.rint(3 * rng.random((_ROWS, 3)) @ rng.random((3, 24)) / 2).clip(0, 3)
    responses = rng.binomial(2, rng.dirichlet([1, 1, 1], _ROWS) @ rng.random((3, 24))).astype(np.float64)
    measured = rng.random((_ROWS, 3)) @ rng.random((3, 24)) + 0.1 * rng.standard_normal((_ROWS, 24))
    tensor = np.einsum("ir,jr,kr->ijk", rng.random((_ROWS, 2)), rng.random((6, 2)), rng.random((5, 2)))
    arrays: dict[str, list[NDArray[np.float64]]] = {
        "answers": [answers, _with_missing(answers, rng)],
        "responses": [responses, _with_missing(responses, rng)],
        "measured": [measured, _with_missing(measured, rng)],
        "tensor": [tensor, _with_missing(tensor, rng)],
    }
    return {name: [*_stored(name, entries, folder)] for name, entries in arrays.items()}


def _with_missing(array: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    return np.where(rng.random(array.shape) < 0.1, np.nan, array)


def _stored(name: str, arrays: list[NDArray[np.float64]], folder: Path) -> Iterator[dfact.Dataset]:
    for number, array in enumerate(arrays):
        for dtype in (np.float32, np.float64):
            location = folder / f"{name}-{number}-{np.dtype(dtype).name}.zarr"
            yield dfact.import_array(array.astype(dtype), location)


def fits(data: dict[str, list[dfact.Dataset]]) -> Iterator[tuple[object, dfact.Dataset]]:
    """Yield estimators and their data."""
    for solver in ("mm", "admm"):
        yield from ((dfact.ICQF(3, solver=solver, **_ITERATIONS), dataset) for dataset in data["answers"])
    for loss in ("frobenius", "kullback-leibler"):
        yield from ((dfact.NMF(3, loss=loss, **_ITERATIONS), dataset) for dataset in data["answers"])
    yield from ((dfact.GradeOfMembership(3, random_state=0), dataset) for dataset in data["responses"])
    yield from ((dfact.Admixture(3, ploidy=2, random_state=0, **_ITERATIONS), dataset) for dataset in data["responses"])
    yield from ((dfact.FactorAnalysis(3), dataset) for dataset in data["measured"])
    yield from ((dfact.PCA(3, **_ITERATIONS), dataset) for dataset in data["measured"])
    for solver in ("exact", "surrogate"):
        model = {"tau": 0.2, "ridge": 0.1, "solver": solver, **_ITERATIONS}
        yield from ((dfact.ExpectileMF(3, **model), dataset) for dataset in data["measured"])
    for solver in ("bcd", "stochastic"):
        yield from ((dfact.ElasticCP(2, lam=0.1, solver=solver, random_state=0, **_ITERATIONS), dataset) for dataset in data["tensor"])
    yield from ((dfact.CPALS(2, random_state=0, **_ITERATIONS), dataset) for dataset in data["tensor"])


def main() -> None:
    """Fit all models, and transform the rows of the data with each."""
    warnings.simplefilter("ignore")  # few iterations do not converge
    with tempfile.TemporaryDirectory() as folder:
        for model, dataset in fits(datasets(np.random.default_rng(0), Path(folder))):
            model.fit(dataset)  # type: ignore[attr-defined]
            if hasattr(model, "transform"):
                model.transform(dataset)


if __name__ == "__main__":
    main()
