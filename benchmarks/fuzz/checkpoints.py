"""Targets: checkpoints of interrupted fits, selections and resamples, damaged."""

# ruff: noqa: ARG001  # every reader takes the same arguments
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd

import dfact
from benchmarks.fuzz.genotypes import genotypes
from benchmarks.fuzz.mutations import mutate_store
from benchmarks.fuzz.target import M, N, Target, answers, expect
from dfact import selection
from dfact.engine.checkpoint import resume_point
from dfact.models.estimator import Factorization
from dfact.storage.records import RecordWriter

_SEED: dict[str, Any] = {"random_state": 0}


class InterruptionError(Exception):
    """Stands for the loss of the process."""


def _ratings() -> Any:
    values = answers().filter(like="Q").astype(float)
    return values.mask(values == -9).to_numpy()


def _calls() -> Any:
    return np.where(genotypes() < 0, np.nan, genotypes())


def _tensor() -> Any:
    return np.random.default_rng(4).random((N, M, 3))


def _fit(make: Callable[[], Any], data: Callable[[], Any]) -> Callable[[Any], Any]:
    return lambda checkpoint: make().set_params(checkpoint=checkpoint, checkpoint_every=1, executor="inline").fit(data())


@cache
def _fitted_icqf() -> Any:
    return dfact.ICQF(2, max_iter=3, random_state=0, executor="inline").fit(_ratings())


@cache
def _fitted_admixture() -> Any:
    return dfact.Admixture(2, ploidy=2, max_iter=3, random_state=0, checkpoint_every=1, executor="inline").fit(_calls())


@cache
def _groups() -> tuple[Any, Any, Any]:
    """Answers of two groups of 60, the groups, and a model of both with the group as a confounder."""
    values, groups = np.random.default_rng(5).integers(0, 4, (120, M)).astype(float), pd.DataFrame({"group": ["a", "b"] * 60})
    return values, groups, dfact.ICQF(2, max_iter=3, random_state=0, executor="inline").fit(values, confounders=groups)


def _compare_groups(checkpoint: Any) -> Any:
    values, groups, model = _groups()
    options = {"n_resamples": 40, "confounders": groups, "checkpoint": checkpoint}
    return selection.compare_groups(model, values, "group", **options, **_SEED)


def _select_icqf(checkpoint: Any) -> Any:
    model, grid = dfact.ICQF(2, max_iter=3, random_state=0, executor="inline"), {"n_components": [1, 2]}
    return selection.block_cross_validate(model, _ratings(), grid=grid, n_blocks=(3, 3), n_folds=3, checkpoint=checkpoint, **_SEED)


def _select_emf(checkpoint: Any) -> Any:
    model, grid = dfact.ExpectileMF(1, max_iter=3, random_state=0, checkpoint_every=1, executor="inline"), {"n_components": [1, 2]}
    return selection.select_by_held_out(model, _ratings(), grid=grid, holdout_fraction=0.2, checkpoint=checkpoint, **_SEED)


def _select_cp(checkpoint: Any) -> Any:
    model = dfact.ElasticCP(1, max_iter=3, random_state=0, checkpoint_every=1, executor="inline")
    return selection.select_penalty(model, _tensor(), lambdas=[0.1, 1.0], holdout_fraction=0.2, checkpoint=checkpoint, **_SEED)


def _select_admixture(checkpoint: Any) -> Any:
    model = dfact.Admixture(2, ploidy=2, max_iter=3, random_state=0, executor="inline")
    return selection.cross_validate_entries(model, _calls(), n_components=[1, 2], n_folds=2, checkpoint=checkpoint, **_SEED)


def _select_gom(checkpoint: Any) -> Any:
    model = dfact.GradeOfMembership(2, random_state=0, checkpoint_every=1, executor="inline")
    return selection.select_by_modularity(model, _ratings(), n_components=[2, 3], checkpoint=checkpoint)


CHECKPOINTS: dict[str, Callable[[Any], Any]] = {
    "icqf": _fit(lambda: dfact.ICQF(2, max_iter=4, random_state=0), _ratings),
    "icqf admm": _fit(lambda: dfact.ICQF(2, max_iter=4, solver="admm", rho="adaptive", random_state=0), _ratings),
    "nmf": _fit(lambda: dfact.NMF(2, max_iter=4, init="random", random_state=0), _ratings),
    "gom": _fit(lambda: dfact.GradeOfMembership(2, random_state=0), _ratings),
    "admixture": _fit(lambda: dfact.Admixture(2, ploidy=2, max_iter=3, random_state=0), _calls),
    "emf": _fit(lambda: dfact.ExpectileMF(2, max_iter=4, random_state=0), _ratings),
    "cp": _fit(lambda: dfact.ElasticCP(2, max_iter=4, random_state=0), _tensor),
    "select icqf": _select_icqf,
    "select emf": _select_emf,
    "select cp": _select_cp,
    "select admixture": _select_admixture,
    "select gom": _select_gom,
    "bootstrap": lambda checkpoint: selection.bootstrap(_fitted_icqf(), _ratings(), 3, checkpoint=checkpoint, **_SEED),
    "block bootstrap": lambda checkpoint: selection.block_bootstrap(
        _fitted_admixture(), _calls(), 3, n_blocks=3, checkpoint=checkpoint, **_SEED
    ),
    "compare groups": _compare_groups,
}
"""Computations with a checkpoint, by name: functions of its location."""


def checkpoint_target(name: str) -> Target:
    """Return the target of a checkpoint, from which the same call must resume with bit-identical results, or which it must refuse."""
    compute = CHECKPOINTS[name]
    original: list[list[bytes]] = []

    def make(folder: Path) -> None:
        written: list[str] = []
        original[:] = [list(_bits(compute(None)))]
        finish = RecordWriter.finish

        def finish_some(writer: RecordWriter, **attributes: Any) -> None:
            if len(written) == 4:  # two versions of a fit
                raise InterruptionError
            finish(writer, **attributes)
            written.append(writer.name)

        with mock.patch.object(RecordWriter, "finish", finish_some):
            try:
                compute(folder / "c.zarr")
            except InterruptionError:
                return
        expect(written, "nothing is written to the checkpoint")

    def read(folder: Path, out: Path, same: bool) -> None:
        path = shutil.copytree(folder / "c.zarr", out / "c.zarr")  # it is continued
        try:
            resume_point(path)
            expect(list(_bits(compute(path))) == original[0], "other results after the interruption")
        finally:
            shutil.rmtree(path)

    return Target(make, lambda folder, rng: mutate_store(folder / "c.zarr", rng), read)


def _bits(result: Any) -> Iterator[bytes]:
    """Yield the numbers of a result: of an array, or of the attributes of a model, a selection or a summary."""
    if isinstance(result, np.ndarray):
        yield result.tobytes()
    elif isinstance(result, pd.DataFrame):
        yield result.drop(columns="seconds", errors="ignore").select_dtypes("number").to_numpy(np.float64).tobytes()
    elif isinstance(result, (list, tuple)):
        for part in result:
            yield from _bits(part)
    elif hasattr(result, "__dict__"):
        for name, value in sorted(vars(result).items()):
            if not name.startswith("_") and isinstance(value, (np.ndarray, pd.DataFrame, list, tuple, Factorization)):
                yield from _bits(value)


CHECKPOINT_TARGETS = {f"checkpoint {name}": checkpoint_target(name) for name in CHECKPOINTS}
