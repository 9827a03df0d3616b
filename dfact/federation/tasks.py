"""Tasks that sites and coordinator carry out together, as JSON: the same statement runs in every process."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import dfact
from dfact.data.dataset import Dataset
from dfact.errors import FederationError
from dfact.models.catalogue import BY_NAME
from dfact.models.estimator import Factorization
from dfact.models.fit_task import RUNTIME_PARAMETERS
from dfact.psychometrics.description import describe
from dfact.selection import block_cross_validate

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
            return cls(kind, None, {}, arguments)
        name = type(model).__name__
        if name in NOT_FEDERABLE:
            raise FederationError(f"{name} cannot be fitted across sites: {NOT_FEDERABLE[name]}")
        defaults = type(model)().get_params(deep=False)
        given = {key: value for key, value in model.get_params(deep=False).items() if key not in RUNTIME_PARAMETERS}
        changed = {key: value for key, value in given.items() if not _equal(value, defaults[key])}
        for key, value in changed.items():
            try:
                json.dumps(value)
            except TypeError:
                found = f"the parameter {key} of {name} is of type {type(value).__name__}"
                raise FederationError(f"{found}, expected a number or a text for a fit across sites") from None
        return cls(kind, name, changed, arguments)

    def with_seed(self, fingerprint: str) -> "Task":
        """Return the task with a seed that follows from the digest of the data, unless it has one: a repeated command must resume."""
        digest = hashlib.blake2b(fingerprint.encode(), digest_size=4).digest()
        seed, parameters, arguments = int.from_bytes(digest, "little"), dict(self.parameters), dict(self.arguments)
        if self.model is not None and "random_state" in getattr(dfact, self.model)().get_params(deep=False):
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
        if found["model"] is not None and (found["model"] not in BY_NAME or found["model"] in NOT_FEDERABLE):
            raise FederationError(f"a task has the model {found['model'][:40]!r}, expected one that can be fitted across sites")
        unknown = set(found["arguments"]) - ARGUMENTS[found["kind"]]
        if unknown:
            raise FederationError(f"a task to {found['kind']} has the argument {min(unknown)[:40]!r}, which a coordinator cannot set")
        if not isinstance(found["arguments"].get("scales", {}), dict):
            raise FederationError("a task to describe has scales in another form than by name")  # a text would be a path at the site
        return cls(**found)

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "model": self.model, "parameters": dict(self.parameters), "arguments": dict(self.arguments)}

    def estimator(self, executor: Any, **runtime: Any) -> Factorization:
        """Return the model, with parameters that its signature permits."""
        assert self.model is not None, "a description has no model"
        cls = getattr(dfact, self.model)
        unknown = set(self.parameters) - set(cls().get_params(deep=False)) | set(self.parameters) & set(RUNTIME_PARAMETERS)
        if unknown:
            raise FederationError(f"a task has the parameter {min(unknown)[:40]!r}, which {self.model} does not take from a coordinator")
        model: Factorization = cls(**self.parameters, executor=executor, **runtime)
        return model

    @property
    def resumable(self) -> bool:
        """Whether the task is a fit that keeps checkpoints."""
        return self.kind == "fit" and self.model is not None and "checkpoint" in getattr(dfact, self.model)().get_params(deep=False)

    def run(self, dataset: Dataset, executor: Any, **runtime: Any) -> Any:
        """Carry out the task on the pooled data, and return its result: a model, a selection or a description."""
        try:
            return _RUN[self.kind](self, dataset, executor, runtime)
        except TypeError as error:
            raise FederationError(f"the arguments of the task do not fit: {error}") from error


def _fit(task: Task, dataset: Dataset, executor: Any, runtime: dict[str, Any]) -> Any:
    return task.estimator(executor, **runtime).fit(dataset)


def _select(task: Task, dataset: Dataset, executor: Any, runtime: dict[str, Any]) -> Any:
    # Folds are balanced by site, since no process has the confounders of all rows.
    site = np.repeat(np.arange(len(dataset.source.segments)), dataset.source.segments)
    return block_cross_validate(task.estimator(executor), dataset, **task.arguments, **runtime, stratify=site, in_memory=False)


def _describe(task: Task, dataset: Dataset, executor: Any, runtime: dict[str, Any]) -> Any:
    return describe(dataset, executor=executor, **task.arguments, callbacks=runtime.get("callbacks", ()))


_RUN: Mapping[str, Callable[[Task, Dataset, Any, dict[str, Any]], Any]] = {"fit": _fit, "select": _select, "describe": _describe}


ARGUMENTS: Mapping[str, set[str]] = {
    "fit": set(),
    "select": {"grid", "n_blocks", "n_folds", "n_repeats", "rule", "n_restarts", "random_state"},
    "describe": {"scales", "keys", "correlation", "missing", "group_factors", "interval"},
}
"""The arguments that a coordinator may set: none of them is a path."""


def _equal(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)
