"""The parameters that a coordinator may set across sites, by model: numbers and names in ranges, and no array with a value by row.

A parameter that is not listed has its default. Each entry has been reviewed for what it can single out: loadings to start from would
choose the person whose factor is highest, variances or batches by row the rows themselves. Bounds of factors and loadings, and an ℓ1
penalty of NMF, would take the factor of one person alone, and random loadings with a seed the same by trying seeds. Numbers have few
digits: two fits that hardly differ have sums that differ by the few persons for whom the change decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from dfact.errors import FederationError
from dfact.sites.messages import short

MOST_ITERATIONS, MOST_STARTS, _MAX_SEED = 10_000, 20, (1 << 32) - 1


@dataclass(frozen=True)
class Setting:
    """The values of a parameter that a coordinator may set."""

    names: tuple[str | bool | None, ...] = ()
    """Names, True, False and None."""
    low: float = inf
    high: float = -inf
    """Ends of the range of a number; empty if no number may be set."""
    whole: bool = False
    digits: int = 1
    """Significant digits of a number that is not whole, at most."""
    decides: bool = False
    """Whether the value decides whose factor or residual is at a bound, so that fits with many values could tell of a person."""

    def within(self, low: float, high: float) -> "Setting":
        """Return the setting with the part of its range that a policy permits."""
        return replace(self, low=max(self.low, low), high=min(self.high, high))

    def permits(self, value: Any) -> bool:
        """Return whether a value, as JSON holds it, may be set."""
        if value is None or isinstance(value, (str, bool)):
            return any(value is name or (isinstance(value, str) and value == name) for name in self.names)
        if not isinstance(value, int if self.whole else (int, float)) or not self.low <= value <= self.high:
            return False
        return self.whole or float(f"{value:.{self.digits - 1}e}") == value

    @property
    def expected(self) -> str:
        """The values in words."""
        parts = [", ".join(map(repr, self.names))] if self.names else []
        if self.low <= self.high:
            kind = "a whole number" if self.whole else "a number"
            digits = "" if self.whole else f" of {self.digits} digit{'s' if self.digits > 1 else ''}"
            parts.append(f"{kind}{digits} from {self.low:g} to {self.high:g}")
        return " or ".join(parts) or "its default"


def _names(*names: str | bool | None, decides: bool = False) -> Setting:
    return Setting(names, decides=decides)


def _number(low: float, high: float, *names: str | None, whole: bool = False, digits: int = 1, decides: bool = False) -> Setting:
    return Setting(names, low, high, whole, digits, decides)


_MOST_COMPONENTS = 10_000
_SEED, _START = _number(0, _MAX_SEED, None, whole=True), _number(0, _MAX_SEED, None, whole=True, decides=True)
_BOUNDED = {"n_components": _number(2, _MOST_COMPONENTS, whole=True)}
"""With one component the sums of a fit are those of all rows, which other sums tell, less those of the rows whose factor is at a bound."""
_ITERATIVE = {
    "n_components": _number(1, _MOST_COMPONENTS, whole=True),
    "max_iter": _number(1, MOST_ITERATIONS, whole=True),
    "tol": _number(0, 1),
    "dtype": _names("float32", "float64", None),
}
_YES_OR_NO = _names(True, False)

SETTINGS: Mapping[str, Mapping[str, Setting]] = {
    "ICQF": _ITERATIVE
    | _BOUNDED
    | {
        "beta": _number(0, 1, decides=True),
        "penalty": _names("l1", "l2", decides=True),
        "solver": _names("mm", "admm"),
        "subproblem_solver": _names("cd", "fista"),
        "rho": _number(0.1, 100, "adaptive"),
        "init": _names("nndsvd"),
        "random_state": _SEED,
    },
    "NMF": _ITERATIVE
    | _BOUNDED
    | {
        "loss": _names("frobenius", "kullback-leibler", decides=True),
        "alpha_W": _number(0, 1, decides=True),
        "alpha_H": _number(0, 1, "same", decides=True),
        "init": _names("nndsvd"),
        "random_state": _SEED,
    },
    "FactorAnalysis": _ITERATIVE
    | {
        "method": _names("minres"),
        "correlation": _names("pearson", "polychoric"),
        "rotation": _names("promax", "promax-spss", "oblimin", "varimax", None),
        "kappa": _number(1, 10, digits=2),
        "kaiser": _names(True, False, None),
        "missing": _names("pairwise", "listwise"),
    },
    "PCA": _ITERATIVE
    | {
        "scale": _names("standard", "binomial", None),
        "whiten": _YES_OR_NO,
        "unshrink": _YES_OR_NO,
        "missing": _names("em", "mean"),
    },
    "ExpectileMF": _ITERATIVE
    | _BOUNDED
    | {
        "tau": _number(0.02, 0.98, digits=2, decides=True),
        "ridge": _number(1e-12, 1000, decides=True),
        "solver": _names("exact", "surrogate", None),
        "init": _names("svd", "random"),
        "orthogonalize": _YES_OR_NO,
        "random_state": _START,
    },
    "ElasticCP": _ITERATIVE
    | _BOUNDED
    | {
        "lam": _number(0, 10, decides=True),
        "l1_ratio": _number(0, 1, decides=True),
        "nonnegative": _names(True, False, decides=True),
        "missing": _names("auto", "fill", "exact"),
        "slice_variances": _names("estimate", None, decides=True),
        "init": _names("auto", "random", "svd"),
        "n_init": _number(1, MOST_STARTS, whole=True),
        "random_state": _START,
    },
    "Admixture": _ITERATIVE
    | {
        "ploidy": _number(1, 254, whole=True),
        "unshrink": _YES_OR_NO,
        "init": _names("random"),
        "random_state": _SEED,
    },
}
"""The models that can be fitted across sites, with the parameters that a coordinator may set."""


def check_setting(model: str, name: str, value: Any, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Raise FederationError unless a coordinator may set a parameter of a model to a value, within the ``ranges`` of a policy."""
    setting = SETTINGS[model].get(name)
    if setting is None:
        raise FederationError(f"a task has the parameter {short(name)}, which {model} takes from no coordinator; leave it at its default")
    if name in ranges:
        setting = setting.within(*ranges[name])
    if not setting.permits(value):
        raise FederationError(f"{name} of a task is {short(value)}, expected {setting.expected}, which is what a coordinator may set")
