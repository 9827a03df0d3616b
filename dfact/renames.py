"""Names that have changed: an old one works for one more version, and a DeprecationWarning names the new one.

``NAMES`` and ``VALUES`` list all of them, by owner: a class of estimators or records, a function, a module, or a command. They apply to

- attributes and parameters of classes (:func:`add_old_names`), and ``set_params``;
- parameters of functions (:func:`accept_old_names`), and functions of modules (:func:`current_name`);
- options of commands (:func:`current_arguments`) and keys of jobs (:func:`current`), both without dashes in front;
- models and their commands (``MODELS``): the old ones, whose parameters differ, stay for one version (:func:`warn_model`).

Saved models, checkpoints and the records of jobs hold the old names (:func:`stored`), so that each version reads those of the other.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

C = TypeVar("C", bound=type[Any])
F = TypeVar("F", bound=Callable[..., Any])

NAMES: dict[str, dict[str, str]] = {
    "GradeOfMembership": {
        "n_levels": "max_response",
        "n_levels_": "max_response_",
        "history_": "log_likelihood_history_",
        "n_nonrespondents_": "n_unobserved_",
    },
    "Admixture": {"n_trials": "ploidy", "frequencies_": "allele_frequencies_", "history_": "log_likelihood_history_"},
    "ICQF": {"inner": "subproblem_solver"},
    "ElasticCP": {"prior": "slice_variances", "prior_": "slice_variances_", "read_share_": "n_epochs_"},
    "ElasticCP.transform": {"prior": "slice_variances"},
    "ExpectileMF": {"omega": "tau", "omegas_": "taus_"},
    "ExpectileMF.predict": {"rows": "X"},
    "ExpectileMF.fit_each": {"omegas": "taus"},
    "select_each_by_held_out": {"omegas": "taus", "repeats": "n_repeats"},
    "select_by_held_out": {"repeats": "n_repeats"},
    "block_cross_validate": {"repeats": "n_repeats", "restarts": "n_restarts"},
    "select_by_criterion": {"restarts": "n_restarts"},
    "replicability": {"repeats": "n_repeats", "starts": "n_starts"},
    "select_number_of_factors": {"seed": "random_state"},
    "Comparison": {"findings": "dif_items", "screen": "mantel_tests"},
    "compare_groups": {"levels": "groups"},
    "describe": {"weights": "sample_weight"},
    "import_table": {"answers": "not_missing", "stack": "third_mode", "n_jobs": "n_readers"},
    "import_genotypes": {"n_jobs": "n_readers"},
    "dfact.selection": {"select_on_path": "select_penalty"},
    "dfact compare": {"levels": "groups"},
    "dfact stability": {"blocks": "snp-blocks"},
    "dfact import": {"answers": "not-missing", "stack": "third-mode", "jobs": "n-readers"},
    "dfact import-array": {"absent": "implicit"},
    "dfact fit gom": {"levels": "max-response"},
    "dfact select gom": {"levels": "max-response"},
    "dfact fit icqf": {"inner": "subproblem-solver"},
    "dfact fit cp": {"prior": "slice-variances"},
    "dfact select cp": {"prior": "slice-variances"},
    "dfact fit emf": {"omega": "tau"},
    "dfact select emf": {"omega": "tau"},
    "dfact fit admixture": {"trials": "ploidy"},
    "dfact select admixture": {"trials": "ploidy"},
}
"""The new name for each old one. An owner has no two old names for one new one."""
VALUES: dict[str, dict[str, dict[str, str]]] = {
    "ICQF": {"solver": {"splitless": "mm"}},
    "ElasticCP": {"init": {"nvecs": "svd"}},
    "SelectionRecord": {"rule": {"lowest": "min", "highest": "max"}},
    "block_cross_validate": {"rule": {"lowest": "min"}},
    "select_penalty": {"rule": {"lowest": "min"}},
    "dfact fit icqf": {"solver": {"splitless": "mm"}},
    "dfact fit cp": {"init": {"nvecs": "svd"}},
    "dfact select cp": {"init": {"nvecs": "svd"}, "rule": {"lowest": "min"}},
    "dfact select icqf": {"rule": {"lowest": "min"}},
}
"""The new value for each old one, by the parameter's new name."""


MODELS = {"L1NMF": "NMF", "fit l1nmf": "fit nmf"}
"""The new class or command for each old one."""


class OldNameWarning(DeprecationWarning):
    """An old name is used."""


def current(owner: type[Any] | str, given: Mapping[str, Any], *, warn: bool = True) -> dict[str, Any]:
    """Return arguments, attributes or settings under their current names, with their current values.

    Raises
    ------
    TypeError
        Both the old and the new name are given.
    """
    names, values = _names(owner), _values(owner)
    found: dict[str, Any] = {}
    for old, value in given.items():
        name = names.get(old, old)
        if name != old and name in given:
            raise TypeError(f"{_title(owner)} has {name} and {old}, which is its old name; pass {name} alone")
        found[name] = values.get(name, {}).get(value, value) if isinstance(value, str) else value
        if warn and name != old:
            warn_old_name(owner, old, name)
        if warn and found[name] is not value:
            warn_old_name(owner, f"{name}={value!r}", f"{name}={found[name]!r}")
    return found


def stored(owner: type[Any] | str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments, attributes or settings under the names, and with the values, that stores have."""
    names = {new: old for old, new in _names(owner).items()}
    values = {name: {new: old for old, new in renamed.items()} for name, renamed in _values(owner).items()}
    return {
        names.get(name, name): values.get(name, {}).get(value, value) if isinstance(value, str) else value for name, value in given.items()
    }


def current_name(module: str, old: str) -> str:
    """Return the current name of a function of a module, for its ``__getattr__``; raise AttributeError for a name that it never had."""
    if old not in NAMES.get(module, {}):
        raise AttributeError(f"module {module!r} has no attribute {old!r}")
    name = NAMES[module][old]
    warn_old_name(module, old, name)
    return name


def warn_model(old: str) -> None:
    """Warn of the old name of a model, where it is read from the package."""
    warn_old_name("dfact", old, MODELS[old])


def current_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of ``dfact`` with the current names and values of options."""
    words = [argument for argument in arguments if not argument.startswith("-")]
    if " ".join(words[:2]) in MODELS:
        warn_old_name("dfact", " ".join(words[:2]), MODELS[" ".join(words[:2])], stacklevel=3)
    commands = [" ".join(["dfact", *words[:count]]) for count in (2, 1)]
    owner = next((name for name in commands if name in NAMES or name in VALUES), "dfact")
    found: list[str] = []
    option = ""  # of which the next argument is the value
    for number, argument in enumerate(arguments):
        if argument == "--":
            return [*found, *arguments[number:]]
        if argument.startswith("--"):
            old, equals, value = argument.removeprefix("--").partition("=")
            [(option, value)] = current(owner, {old: value}).items()
            found.append(f"--{option}{equals}{value}")
            option = "" if equals else option
        else:
            found.append(current(owner, {option: argument})[option])
            option = ""
    return found


def accept_old_names(function: F, owner: type[Any] | None = None) -> F:
    """Let a function, or the ``__init__`` of its owner, accept the old names and values of its arguments."""
    named: Any = owner or function.__qualname__
    code = getattr(function, "__code__", None)
    positional = code.co_varnames[: code.co_argcount] if code is not None and _values(named) else ()

    def with_current(args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if positional:
            args = (*current(named, dict(zip(positional, args, strict=False))).values(), *args[len(positional) :])
        return args, current(named, keywords)

    def renamed(*args: Any, **keywords: Any) -> Any:
        args, keywords = with_current(args, keywords)
        return function(*args, **keywords)

    # Python's warnings skip frames of such files, so that warnings of the function state the line that calls it.
    renamed.__code__ = renamed.__code__.replace(co_filename=f"importlib._bootstrap of {__file__}")
    return cast("F", wraps(function)(renamed))


def add_old_names(kind: C) -> C:
    """Let a class accept the old names of its attributes, of its parameters, and of those of its methods."""
    for old, name in NAMES.get(kind.__name__, {}).items():
        setattr(kind, old, _OldAttribute(old, name))
    if "__init__" in vars(kind) and (kind.__name__ in NAMES or kind.__name__ in VALUES):
        kind.__init__ = accept_old_names(kind.__init__, kind)
    for name, value in list(vars(kind).items()):
        if f"{kind.__name__}.{name}" in NAMES:
            setattr(kind, name, accept_old_names(value))
    return kind


class _OldAttribute:
    """Attribute that reads and sets the one of its new name."""

    def __init__(self, old: str, name: str) -> None:
        self._old, self._name = old, name

    def __get__(self, instance: Any, kind: type[Any]) -> Any:
        if instance is None:
            return self
        value = getattr(instance, self._name)
        warn_old_name(kind, self._old, self._name, stacklevel=3)
        return value

    def __set__(self, instance: Any, value: Any) -> None:
        warn_old_name(type(instance), self._old, self._name, stacklevel=3)
        setattr(instance, self._name, value)


def _names(owner: type[Any] | str) -> dict[str, str]:
    owners = [owner] if isinstance(owner, str) else [kind.__name__ for kind in owner.__mro__]
    return {old: name for each in owners for old, name in NAMES.get(each, {}).items()}


def _values(owner: type[Any] | str) -> dict[str, dict[str, str]]:
    owners = [owner] if isinstance(owner, str) else [kind.__name__ for kind in owner.__mro__]
    return {name: renamed for each in owners for name, renamed in VALUES.get(each, {}).items()}


def _title(owner: type[Any] | str) -> str:
    return owner if isinstance(owner, str) else owner.__name__


def warn_old_name(owner: type[Any] | str, old: str, name: str, stacklevel: int = 4) -> None:
    """Warn of an old name, by default where the caller of the caller of the function that calls this is called."""
    warnings.warn(f"{_title(owner)}: {old} is an old name, which the next version drops; use {name}", OldNameWarning, stacklevel=stacklevel)
