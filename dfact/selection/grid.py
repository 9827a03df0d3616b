"""Configurations of a parameter grid, and the plan of their fits."""

import itertools
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from dfact.data.dataset import Dataset
from dfact.errors import ParameterError
from dfact.models.estimator import Factorization
from dfact.selection.estimators import takes_confounders, with_parameters
from dfact.selection.fold_fits import EstimatorFits, GridGroup, PathSettings, WarmStarts, from_the_middle

Parameters = dict[str, Any]


def expand(model: Any, grid: Mapping[str, Any]) -> list[Parameters]:
    """Return every combination of the grid's values; the last parameter varies fastest."""
    names = model.get_params(deep=False)
    if not grid:
        raise ParameterError("grid is empty, expected values to try, such as {'n_components': [2, 3, 4]}")
    values: dict[str, list[Any]] = {}
    for name, candidates in grid.items():
        if name not in names:
            raise ParameterError(f"grid has {name!r}, which is no parameter of {type(model).__name__}; expected some of {', '.join(names)}")
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
    model: Any, configurations: list[Parameters], dataset: Dataset, n_covariates: int, restarts: int, seed: int
) -> WarmStarts | EstimatorFits:
    """Plan warm-started fits for models whose objective is a ``problem_`` of ICQF's kind, and the estimator's own fits for others.

    A fit of one iteration with the most components checks all parameters and the data, and sets the problem's constants.
    """
    parameters = model.get_params(deep=False)
    if not {"n_components", "beta", "max_iter", "tol"} <= set(parameters):
        return _plan_own_fits(model, configurations, restarts)
    kinds: dict[str, list[int]] = {}
    for i, configuration in enumerate(configurations):
        fixed = {name: value for name, value in configuration.items() if name not in ("n_components", "beta")}
        kinds.setdefault(repr(fixed), []).append(i)
    groups: list[GridGroup] = []
    for numbers in kinds.values():
        k = most_components(model, [configurations[i] for i in numbers])
        first = with_parameters(model, **configurations[numbers[0]] | {"n_components": k, "max_iter": 1, "callbacks": ()})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the fit with the best parameters warns again
            first.fit(dataset)
        problem = getattr(first, "problem_", None)
        if problem is None:
            return _plan_own_fits(model, configurations, restarts)
        defaults = [
            {"n_components": first.n_components if "n_components" not in configurations[i] else 0, "beta": model.beta} for i in numbers
        ]
        groups += _make_groups(numbers, [d | configurations[i] for d, i in zip(defaults, numbers, strict=True)], problem)
    dtype = model._working_dtype(dataset)
    settings = PathSettings(dataset.shape[1], n_covariates, dtype, float(model.tol), int(model.max_iter), restarts, seed)
    return WarmStarts(tuple(groups), settings)


def _plan_own_fits(model: Any, configurations: list[Parameters], restarts: int) -> EstimatorFits:
    if restarts:
        raise ParameterError(f"restarts is {restarts}, expected 0: a {type(model).__name__} is fitted from its own start alone")
    return EstimatorFits(model, tuple(configurations))


def _make_groups(numbers: list[int], configurations: list[Parameters], problem: Any) -> list[GridGroup]:
    """Return a group for each number of components, increasing, of configurations that differ in it and β alone."""
    groups: list[GridGroup] = []
    for k in sorted({int(c["n_components"]) for c in configurations}):
        same = [(i, float(c["beta"])) for i, c in zip(numbers, configurations, strict=True) if c["n_components"] == k]
        order = [same[position] for position in from_the_middle([beta for _, beta in same])]
        problems = tuple(replace(problem, k=k, beta=beta) for _, beta in order)
        groups.append(GridGroup(tuple(i for i, _ in order), problems, continues=bool(groups)))
    return groups


def best_fit(model: Any, parameters: Parameters, X: Any, confounders: Any, restarts: int, seed: int) -> Factorization:
    """Fit the model from its own start and ``restarts`` random ones; return the fit with the lowest objective."""
    arguments = {} if confounders is None or not takes_confounders(model) else {"confounders": confounders}
    best: Any = with_parameters(model, **parameters).fit(X, **arguments)
    for restart in range(restarts):
        random = np.random.SeedSequence(seed, spawn_key=(len(best.components_), restart)).generate_state(1)[0]
        candidate = with_parameters(model, **parameters, init="random", random_state=int(random) % 2**31).fit(X, **arguments)
        if candidate.objective_history_[-1] < best.objective_history_[-1]:
            best = candidate
    fitted: Factorization = best
    return fitted
