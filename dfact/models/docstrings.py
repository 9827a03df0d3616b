"""Docstrings of estimators and their methods, completed by the entries and sections that all share.

A method's own docstring says what it does. Arguments, results and errors are added to it, so that ``help`` and the reference show both.
"""

from inspect import cleandoc, isfunction, signature
from typing import Any

from dfact.text import add_entries, section_entries


def with_shared_entries(cls: type, base: type) -> str | None:
    """Return the docstring of an estimator with what ``base`` documents for all, and the estimator does not itself."""
    docstring, shared = cls.__doc__, base.__doc__
    if docstring is None or shared is None:  # python -OO
        return docstring
    for title in ("Parameters", "Attributes"):
        entries = section_entries(docstring, title)
        if entries:
            described = {name for names in entries for name in names.split(", ")}
            absent = {names: entry for names, entry in section_entries(shared, title).items() if described.isdisjoint(names.split(", "))}
            accepted = absent if title == "Attributes" else signature(cls).parameters
            docstring = add_entries(docstring, title, [entry for name, entry in absent.items() if name in accepted])
    return docstring


_DATA = "array (n, m), path or Dataset\n    Rows and columns; for a tensor (n, I_2, …, I_N). NaN is missing."
_TASK = "FitTask\n    The fit that ``prepare`` returned."
_FACTORS = "array (n, k)\n    Factors of n rows."
_HELD_OUT = "callable\n    View of a block with the held-out entries alone."
_PARAMETERS = {
    "X": _DATA,
    "checkpoint": "path, optional\n    Store (folder or URL) for the progress of the fit, in place of the parameter of this name.",
    "confounders": "table (n, c), optional\n    Confounders of the rows, in place of those of the data.",
    "sample_weight": "array (n,), optional\n    Weights of the rows, at least 0, in place of those of the data.",
    "populations": "array (n,), optional\n    Names of the populations of the rows, in place of those of the data.",
    "out": "path, optional\n    Folder or URL of a Zarr array to which the result is written.",
    "slice_variances": "array (n,), optional\n    Variances of the slices.",
    "task": _TASK,
    "W": _FACTORS,
    "factors": _FACTORS,
    "memberships": _FACTORS,
    "scores": _FACTORS,
    "dataset": "Dataset\n    The data.",
    "input_features": "array (m,), optional\n    Names of the columns, which are checked and have no other effect.",
    "held_out": _HELD_OUT,
    "measure": "ErrorMeasure\n    The errors to compute.",
    "weights": "ColumnWeights\n    Number of times that each column counts.",
    "level": "float\n    Probability that any test for drift rejects although the rows come from the same population.",
    "mode": "int\n    Number of the mode, from 0.",
}
"""Types and meanings of arguments, by their names."""
_SOLVER = "Solver\n    A generator of requests, for :func:`dfact.engine.requests.drive`; its result is "
_RETURNS = {
    "fit": "self\n    The fitted model.",
    "partial_fit": "self\n    The updated model.",
    "prepare_update": "FitTask\n    The checked update, with its memory plan.",
    "update_prepared": "self\n    The updated model.",
    "grow": f"{_SOLVER}None.",
    "drift": "Drift\n    Differences of items and factors, with p values.",
    "fit_prepared": "self\n    The fitted model.",
    "fit_transform": "array (n, k)\n    Factors of the rows; for stored data a Zarr array.",
    "transform": "array (n, k)\n    Factors of the rows; for stored data a Zarr array, for a Dask array another one.",
    "inverse_transform": "array (n, m)\n    The model's values; for a tensor (n, I_2, …, I_N).",
    "row_factors": "array (n, k)\n    A Zarr array if the data is stored.",
    "get_feature_names_out": "array (k,) of str\n    One name for each component.",
    "prepare": "FitTask\n    The checked fit, with its memory plan.",
    "solve": f"{_SOLVER}the fitted model.",
    "open_session": "Session\n    A context manager that runs passes.",
    "plan_session": "Plan\n    Memory and disk space of the session.",
    "fitted_by_passes": "ElasticCP\n    Not fitted.",
    "elastic_net": "ElasticNet\n    λ, α and the constraint.",
    "reconstruct": "array (I_1, …, I_N)\n    The model, in memory.",
    "slice_names": "list of str\n    One label for each slice.",
    "standardize": f"{_SOLVER}the means and scales of the columns.",
    "prepare_variances": "FitTask\n    The checked task, with its memory plan.",
    "find_variances": f"{_SOLVER}the variances.",
    "prepare_held_out": "FitTask\n    The checked fit, with its memory plan.",
    "held_out_squares": f"{_SOLVER}the sums of squared errors.",
    "score_samples": "array (n,)\n    Log-likelihood of each row.",
    "held_out_deviance": f"{_SOLVER}the sums of the held-out entries.",
    "held_out_errors": f"{_SOLVER}the errors.",
    "initial_factors": f"{_SOLVER}the start.",
    "maximize": f"{_SOLVER}the counts and the maximum.",
    "refit": f"{_SOLVER}the name of the memberships.",
    "correlate": "Correlations\n    The correlations (m, m) with the numbers of rows behind them.",
}
"""Types and meanings of results, by the names of the methods."""
_INVALID = "DataError\n    The data is not what the model takes; see the class."
_OTHER_COLUMNS = "DataError\n    X has other columns than the fitted data, or entries out of range."
_MEMORY = "MemoryPlanError\n    The minimum that the computation needs exceeds ``memory_limit``."
_UNFITTED = "sklearn.exceptions.NotFittedError\n    The model is not fitted."
_PARAMETER = "ParameterError\n    A parameter is invalid."
_RAISES = {
    "fit": (_INVALID, _PARAMETER, _MEMORY),
    "partial_fit": (_OTHER_COLUMNS, _PARAMETER, _MEMORY),
    "prepare_update": (_UNFITTED, _OTHER_COLUMNS),
    "update_prepared": (_MEMORY,),
    "drift": (_UNFITTED, _OTHER_COLUMNS, _MEMORY),
    "fit_prepared": (_MEMORY,),
    "fit_transform": (_INVALID, _PARAMETER, _MEMORY),
    "prepare": (_INVALID, _PARAMETER),
    "transform": (_UNFITTED, _OTHER_COLUMNS, _MEMORY),
    "inverse_transform": (_UNFITTED, "DataError\n    The factors have another number of columns than the model has components."),
    "get_feature_names_out": (_UNFITTED,),
    "open_session": (_MEMORY,),
}
"""Errors, by the names of the methods."""


def document_methods(cls: type[Any]) -> None:
    """Add the sections that the docstrings of a class's own methods lack."""
    for name, method in vars(cls).items():
        if name in _RETURNS and isfunction(method) and method.__doc__:  # python -OO removes docstrings
            method.__doc__ = _documented(name, method)


def _documented(name: str, method: Any) -> str:
    docstring = cleandoc(method.__doc__)
    given = [parameter for parameter in signature(method).parameters if parameter in _PARAMETERS]
    sections = {
        "Parameters": [f"{parameter} : {_PARAMETERS[parameter]}" for parameter in given],
        "Returns": [_RETURNS[name]],
        "Raises": list(_RAISES.get(name, ())),
    }
    for title, entries in sections.items():
        if entries and not section_entries(docstring, title):
            docstring += "\n".join(["", "", title, "-" * len(title), *entries])
    return docstring
