"""Tasks that sites and coordinator carry out together, as JSON: the same statement runs in every process."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np

from dfact.catalogue import BY_NAME, find_part
from dfact.data.dataset import Dataset
from dfact.errors import FederationError
from dfact.models.estimator import Factorization
from dfact.models.fit_task import RUNTIME_PARAMETERS
from dfact.selection import block_cross_validate
from dfact.sites.messages import short
from dfact.sites.settings import SETTINGS, check_setting

NOT_FEDERABLE: Mapping[str, str] = {
    "GradeOfMembership": "its spectral method looks for single rows",
}
"""Models that need single rows of the data, with the reason."""


@dataclass(frozen=True)
class Task:
    """A task for all sites: a kind ("fit", "select" or "describe"), a model with its parameters, and further arguments."""

    kind: str
    model: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, kind: str, model: Factorization | None, **arguments: Any) -> "Task":
        """Return the task of a model with its parameters, which must be numbers, texts, or lists of them."""
        if model is None:
            task = cls(kind, None, {}, arguments)
            task._check()
            return task
        name = type(model).__name__
        if name not in SETTINGS:
            found = NOT_FEDERABLE.get(name, "its parameters have not been reviewed for what a coordinator may set")
            raise FederationError(f"{name} cannot be fitted across sites: {found}")
        defaults = type(model)().get_params(deep=False)
        given = {key: value for key, value in model.get_params(deep=False).items() if key not in RUNTIME_PARAMETERS}
        changed = {key: value for key, value in given.items() if not _equal(value, defaults[key])}
        for key, value in changed.items():
            try:
                json.dumps(value)
            except TypeError:
                found = f"the parameter {key} of {name} is of type {type(value).__name__}"
                raise FederationError(f"{found}, expected a number or a text for a fit across sites") from None
        task = cls(kind, name, changed, arguments)
        task._check()
        return task

    def with_seed(self, fingerprint: str) -> "Task":
        """Return the task with a seed that follows from the digest of the data, unless it has one: a repeated command must resume."""
        digest = hashlib.blake2b(fingerprint.encode(), digest_size=4).digest()
        seed, parameters, arguments = int.from_bytes(digest, "little"), dict(self.parameters), dict(self.arguments)
        if self.model is not None and "random_state" in self._class()().get_params(deep=False):
            parameters.setdefault("random_state", seed)
        if self.kind == "select" and arguments.get("random_state") is None:
            arguments["random_state"] = seed
        return replace(self, parameters=parameters, arguments=arguments)

    @classmethod
    def from_json(cls, found: Any) -> "Task":
        """Read a task; raise FederationError if it is not one."""
        members = {"kind": str, "model": (str, type(None)), "parameters": dict, "arguments": dict}
        if not isinstance(found, dict) or found.keys() != members.keys():
            raise FederationError("a task has other members than kind, model, parameters and arguments")
        for name, kind in members.items():
            if not isinstance(found[name], kind):  # type: ignore[arg-type]  # a type or several
                raise FederationError(f"{name} of a task is {str(found[name])[:40]!r}, expected another type")
        if found["kind"] not in _RUN:
            raise FederationError(f"a task is {found['kind'][:40]!r}, expected one of {', '.join(_RUN)}")
        if found["model"] is not None and found["model"] not in SETTINGS:
            raise FederationError(f"a task has the model {found['model'][:40]!r}, expected one that can be fitted across sites")
        unknown = set(found["arguments"]) - ARGUMENTS[found["kind"]]
        if unknown:
            raise FederationError(f"a task to {found['kind']} has the argument {min(unknown)[:40]!r}, which a coordinator cannot set")
        task = cls(**found)
        task._check()
        return task

    def _check(self) -> None:
        """Refuse parameters that a coordinator cannot set, such as paths, and arguments of other forms than :data:`_RUN` takes."""
        if (self.model is None) != (self.kind == "describe"):
            raise FederationError(f"a task to {self.kind} has the model {self.model}, expected one to fit or select, and none to describe")
        scales, grid = self.arguments.get("scales") or {}, self.grid
        if self.arguments.get("weights") not in (None, True, False):
            raise FederationError(f"weights of a task is {short(self.arguments['weights'])}, expected true, false or nothing")
        if not isinstance(scales, dict):
            raise FederationError("a task to describe has scales in another form than by name")  # a text would be a path at the site
        if not all(isinstance(values, list) and values for values in grid.values()):
            raise FederationError("the grid of a task has a parameter without a list of values")
        if self.model is not None:
            self.check_settings({})
        if self.kind == "select":
            fits = self._size("n_repeats", 1) * self._size("n_folds", 10)
            if self.row_blocks < 1 or fits * prod(map(len, grid.values())) > _MAX_FITS:
                raise FederationError(f"a task to select has {self.row_blocks} blocks of rows and more than {_MAX_FITS} fits, or none")

    def check_settings(self, ranges: Mapping[str, tuple[float, float]]) -> None:
        """Refuse parameters that a coordinator may not set, or not to these values; see :data:`dfact.sites.settings.SETTINGS`."""
        if self.model is None:
            return
        for name, value in [*self.parameters.items(), *((name, value) for name, values in self.grid.items() for value in values)]:
            check_setting(self.model, name, value, ranges)

    def deciding_settings(self) -> Iterator[dict[str, Any]]:
        """Yield the values with which models are fitted of the parameters that :attr:`Setting.decides` marks."""
        if self.model is None:
            return
        model = self._class()()
        names = [name for name, setting in SETTINGS[self.model].items() if setting.decides]
        for values in product(*(self._values(name, model) for name in names)):
            yield dict(zip(names, values, strict=True))

    def _class(self) -> type[Factorization]:
        return BY_NAME[str(self.model)].load()

    def _values(self, name: str, model: Factorization) -> list[Any]:
        """Return all values that a parameter takes in this task."""
        found: list[Any] = self.grid.get(name) or [self.parameters.get(name, model.get_params(deep=False).get(name, 1))]
        return found

    def _size(self, name: str, default: int) -> int:
        found = self.arguments.get(name)
        if found is not None and (type(found) is not int or not 0 <= found <= _MAX_FITS):
            raise FederationError(f"{name} of a task is {short(found)}, expected a number up to {_MAX_FITS}")
        return default if found is None else found

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of the function that a task to select or to describe calls."""
        return {name: value for name, value in self.arguments.items() if name != "weights"}

    @property
    def grid(self) -> Mapping[str, Any]:
        """The values to choose from, by parameter."""
        found = self.arguments.get("grid", {})
        if not isinstance(found, dict):
            raise FederationError("a task to select has a grid in another form than by parameter")
        return found

    @property
    def n_components(self) -> int:
        """The largest number of components of a model; 0 for a description."""
        return 0 if self.model is None else max(self._values("n_components", self._class()()))

    @property
    def row_blocks(self) -> int:
        """Number of blocks of rows in cross-validation."""
        found = self.arguments.get("n_blocks", [10, 10])
        valid = isinstance(found, (list, tuple)) and len(found) == 2 and all(type(each) is int for each in found)
        if not valid:
            raise FederationError(f"n_blocks of a task is {short(found)}, expected numbers of blocks of the rows and of the columns")
        return int(found[0])

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "model": self.model, "parameters": dict(self.parameters), "arguments": dict(self.arguments)}

    def estimator(self, executor: Any, **runtime: Any) -> Factorization:
        """Return the model, with parameters that its signature permits."""
        cls: Any = self._class()
        model: Factorization = cls(**self.parameters, executor=executor, **runtime)
        return model

    @property
    def resumable(self) -> bool:
        """Whether the task is a fit that keeps checkpoints."""
        return self.kind == "fit" and self.model is not None and "checkpoint" in self._class()().get_params(deep=False)

    def run(self, dataset: Dataset, executor: Any, **runtime: Any) -> Any:
        """Carry out the task on the pooled data, and return its result: a model, a selection or a description."""
        wanted = self.arguments.get("weights")
        if wanted and dataset.weights is None:
            raise FederationError("the data of the sites has no weights, expected some for weights=True (--weights)")
        if wanted is False:
            dataset = dataset.with_weights(None)
        try:
            return _RUN[self.kind](self, dataset, executor, runtime)
        except TypeError as error:
            raise FederationError("the arguments of the task do not fit") from error


def _fit(task: Task, dataset: Dataset, executor: Any, runtime: dict[str, Any]) -> Any:
    return task.estimator(executor, **runtime).fit(dataset)


def _select(task: Task, dataset: Dataset, executor: Any, runtime: dict[str, Any]) -> Any:
    # Each site has drawn the blocks of its rows, which no other process knows; here are placeholders for those of other sites.
    own = runtime.get("blocks", {})
    blocks = [own.get(number, np.arange(rows) % task.row_blocks) for number, rows in enumerate(dataset.source.segments)]
    drawn: dict[str, Any] = {"groups": np.concatenate(blocks), "stratify": np.zeros(dataset.shape[0]), "in_memory": False}
    settings = {**task.settings, **{name: value for name, value in runtime.items() if name != "blocks"}, **drawn}
    return block_cross_validate(task.estimator(executor), dataset, **settings)


def _describe(task: Task, dataset: Dataset, executor: Any, runtime: dict[str, Any]) -> Any:
    if dataset.weights is not None:
        found = "the data has weights, and weighted numbers of answers do not tell how many rows are behind them"
        raise FederationError(f"{found}; describe it without them: weights=False (--no-weights)")
    describe = find_part("description", "a description").describe
    return describe(dataset, executor=executor, **task.settings, callbacks=runtime.get("callbacks", ()))


_RUN: Mapping[str, Callable[[Task, Dataset, Any, dict[str, Any]], Any]] = {"fit": _fit, "select": _select, "describe": _describe}


ARGUMENTS: Mapping[str, set[str]] = {
    "fit": {"weights"},
    "select": {"grid", "n_blocks", "n_folds", "n_repeats", "rule", "random_state", "weights"},
    "describe": {"scales", "keys", "correlation", "missing", "group_factors", "interval", "weights"},
}
"""The arguments that a coordinator may set: none of them is a path."""
_MAX_FITS = 10_000
"""Number of fits of a selection, at most: their sums leave together."""


def _equal(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)
