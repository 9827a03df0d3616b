"""Configurations of a parameter grid, and the plan of their fits."""

import itertools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from dfact.data.dataset import Dataset
from dfact.engine.memory_plan import Footprint
from dfact.errors import ParameterError
from dfact.models.bounded_nmf.problem import Problem
from dfact.models.estimator import Factorization
from dfact.models.fit_task import FitTask
from dfact.selection.cross_validation.fold_fits import EstimatorFits, GridGroup, PathSettings, WarmStarts, from_the_middle
from dfact.selection.cross_validation.folds import Folds
from dfact.selection.running.estimators import with_parameters
from dfact.selection.running.restarts import fit_starts, lowest_objective

Parameters = dict[str, Any]


def expand(model: Any, grid: Mapping[str, Any]) -> list[Parameters]:
    """Return every combination of the grid's values; the last parameter varies fastest."""
    names = model.get_params(deep=False)
    if not grid:
        raise ParameterError("grid is empty, expected values to try, such as {'n_components': [2, 3, 4]}")
    values: dict[str, list[Any]] = {}
    for name, candidates in grid.items():
        if name not in names:
            kind = type(model).__name__
            raise ParameterError(f"grid has {name!r}, which is not a parameter of {kind}; expected some of {', '.join(names)}")
        single = isinstance(candidates, str) or not np.iterable(candidates)
        values[name] = list(dict.fromkeys([candidates] if single else [v.item() if isinstance(v, np.generic) else v for v in candidates]))
        if not values[name]:
            raise ParameterError(f"grid has no values for {name!r}, expected at least one")
    for k in values.get("n_components", []):
        if not isinstance(k, int) or isinstance(k, bool) or k < 1:
            raise ParameterError(f"n_components is {k!r} in the grid, expected integers of at least 1")
    for beta in values.get("beta", []):
        if not isinstance(beta, (int, float)) or not 0 <= beta < np.inf:
            raise ParameterError(f"beta is {beta!r} in the grid, expected numbers of at least 0")
    return [dict(zip(values, combination, strict=True)) for combination in itertools.product(*values.values())]


def make_index(configurations: list[Parameters]) -> "pd.Index[Any]":
    """Return the configurations as the index of a table."""
    names = list(configurations[0])
    index: pd.Index[Any] = pd.MultiIndex.from_tuples([tuple(c.values()) for c in configurations], names=names)
    return index if len(names) > 1 else index.get_level_values(0)


def most_components(model: Any, configurations: list[Parameters]) -> int:
    """Return the largest number of components among the configurations."""
    return max(int(c.get("n_components", model.get_params(deep=False).get("n_components", 1))) for c in configurations)


def plan_fits(
    model: Any, configurations: list[Parameters], dataset: Dataset, folds: Sequence[Folds], restarts: int, seed: int
) -> WarmStarts | EstimatorFits:
    """Plan warm-started fits for models that have them, and the estimator's own fits for others.

    The fits with the most components are prepared, which checks all parameters and the data.
    """
    here = {"executor": None, "callbacks": ()}  # what belongs to this process; workers get the rest
    model = with_parameters(model, **{name: value for name, value in here.items() if name in model.get_params(deep=False)})
    task: FitTask[Any] = FitTask(model, dataset, None, np.dtype("float64"), Footprint(0, 0, 0, 0), None, {})
    groups: list[GridGroup] = []
    for numbers in _kinds(configurations):
        if not isinstance(model, Factorization):
            break
        changes = dict(configurations[numbers[0]])
        if "n_components" in changes:
            changes["n_components"] = most_components(model, [configurations[i] for i in numbers])
        first: Any = with_parameters(model, **changes)
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # the fit with the best parameters warns again
            prepared = first.prepare(dataset).for_views()
        if prepared.footprint.state_per_row > task.footprint.state_per_row:
            task = prepared
        problem = prepared.problem
        if not model.traits.warm_starts or problem.divergence:
            groups = []
            break
        defaults = {"n_components": problem.k, "beta": problem.beta}
        groups += _make_groups(numbers, [defaults | configurations[i] for i in numbers], problem)
    if not groups:
        if restarts:
            raise ParameterError(f"n_restarts is {restarts}, expected 0: a {type(model).__name__} is fitted from its own start alone")
        return EstimatorFits(task, folds, model, tuple(configurations))
    n_covariates = 0 if task.covariates is None else task.covariates.shape[1] - groups[0].problems[0].weighted
    settings = PathSettings(dataset.shape[1], n_covariates, task.dtype, float(model.tol), int(model.max_iter), restarts, seed)
    return WarmStarts(task, folds, tuple(groups), settings)


def _kinds(configurations: list[Parameters]) -> list[list[int]]:
    """Return the numbers of the configurations that differ in the number of components and the penalty alone."""
    kinds: dict[str, list[int]] = {}
    for i, configuration in enumerate(configurations):
        fixed = {name: value for name, value in configuration.items() if name not in ("n_components", "beta")}
        kinds.setdefault(repr(fixed), []).append(i)
    return list(kinds.values())


def _make_groups(numbers: list[int], configurations: list[Parameters], problem: Problem) -> list[GridGroup]:
    """Return a group for each number of components, increasing, of configurations that differ in it and β alone."""
    groups: list[GridGroup] = []
    for k in sorted({int(c["n_components"]) for c in configurations}):
        same = [(i, float(c["beta"])) for i, c in zip(numbers, configurations, strict=True) if c["n_components"] == k]
        order = [same[position] for position in from_the_middle([beta for _, beta in same])]
        problems = tuple(replace(problem, k=k, beta=beta) for _, beta in order)
        groups.append(GridGroup(tuple(i for i, _ in order), problems, continues=bool(groups)))
    return groups


def best_fit(model: Any, parameters: Parameters, X: Any, confounders: Any, sample_weight: Any, restarts: int, seed: int) -> Any:
    """Fit the model from its own start and ``restarts`` random ones; return the fit with the lowest objective."""
    key = most_components(model, [parameters])
    seeds = [np.random.SeedSequence(seed, spawn_key=(key, restart)).generate_state(1)[0] for restart in range(restarts)]
    return lowest_objective(fit_starts(model, parameters, seeds, X, confounders, sample_weight, own=True))
