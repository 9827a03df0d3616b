"""Parameters that scikit-learn's PCA and NMF have and dfact's do not: accepted where they change nothing, else refused with what to do.

The guide ``from-scikit-learn`` lists all of them, and a test compares the list with scikit-learn's signatures.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, cast

from dfact.errors import ParameterError

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Foreign:
    """A parameter of scikit-learn's."""

    remedy: str
    """Instruction for other values, which follows a semicolon."""
    same: tuple[Any, ...] | None = None
    """Values that change nothing here; None for all."""

    def refuse(self, owner: str, name: str, value: Any) -> None:
        """Raise ParameterError unless the value changes nothing."""
        if self.same is None or any(value is each or (type(value) is type(each) and value == each) for each in self.same):
            return
        raise ParameterError(f"{name} is {value!r}, a parameter of scikit-learn's {owner} that dfact's has not; {self.remedy}")


_SOLVER = "leave it out: the number of columns decides, and the components are those of the full solver up to the accuracy of the data"
OF_PCA = {
    "copy": Foreign("leave it out: data are never changed"),
    "random_state": Foreign("leave it out: a fit draws nothing that changes its result"),
    "svd_solver": Foreign(_SOLVER, ("auto", "full", "covariance_eigh")),
    "iterated_power": Foreign(_SOLVER, ("auto",)),
    "n_oversamples": Foreign(_SOLVER, (10,)),
    "power_iteration_normalizer": Foreign(_SOLVER, ("auto",)),
}
OF_NMF = {
    "beta_loss": Foreign("pass loss='frobenius' or loss='kullback-leibler'; there are no other losses", ("frobenius", 2)),
    "solver": Foreign("leave it out: the loss decides, and the objective is the same", ("cd",)),
    "shuffle": Foreign("leave it out: coordinates are updated in their order", (False,)),
    "verbose": Foreign("pass callbacks=[dfact.Progress('fit')]", (0, False)),
}


def without_foreign(owner: str, foreign: Mapping[str, Foreign], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given parameters without those of scikit-learn alone that change nothing.

    Raises
    ------
    ParameterError
        A parameter of scikit-learn alone has a value that dfact does not have.
    """
    for name in foreign.keys() & given.keys():
        foreign[name].refuse(owner, name, given[name])
    return {name: value for name, value in given.items() if name not in foreign}


def accept_foreign(init: F, owner: str, foreign: Mapping[str, Foreign]) -> F:
    """Let an ``__init__`` accept the parameters of scikit-learn that change nothing, and refuse the others by name."""

    @wraps(init)
    def accepting(self: Any, *args: Any, **keywords: Any) -> None:
        init(self, *args, **without_foreign(owner, foreign, keywords))

    return cast("F", accepting)
