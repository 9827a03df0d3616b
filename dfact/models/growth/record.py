"""The record of a model's growth: how many rows it has seen, and the estimated gain of a complete fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

import numpy as np

from dfact.models.fitted_schema import AtLeast
from dfact.models.growth.baseline import Baseline
from dfact.models.growth.drift import Drift

REFIT_GAIN = 0.002
"""Share of the objective from which on its estimated gain is worth a complete fit."""


@dataclass(frozen=True)
class Gain:
    """Estimated gain of a complete fit, as a share of the objective, with its standard error; NaN where it is unknown."""

    share: float = float("nan")
    error: float = float("nan")

    @property
    def worth_a_fit(self) -> bool:
        """Whether the gain exceeds 0.2% of the objective by two standard errors."""
        return bool(self.share - 2 * self.error > REFIT_GAIN)

    @property
    def may_be_worth_a_fit(self) -> bool:
        """Whether a gain of more than 0.2% of the objective lies within two standard errors."""
        return bool(self.share + 2 * self.error > REFIT_GAIN)


EXACT = Gain(0.0, 0.0)
"""The gain of an update that equals the fit of all rows."""


@dataclass(frozen=True, eq=False)
class Growth:
    """The rows that a model has seen, and what its last update found: the attribute ``growth_`` of a fitted model."""

    fitted_rows: int
    """Rows of the last complete fit."""
    added_rows: int
    """Rows that were added since."""
    weight: Annotated[float, AtLeast(0)]
    """Sum of the weights of all these rows; without weights their number."""
    batches: list[str]
    """Fingerprints of the stored datasets of these rows, once some were added; before, that of the fitted dataset is the model's."""
    baseline: Baseline
    """Figures of all these rows, each with the loadings at the time of its fit or update."""
    gain_share: float
    """Estimated gain of a complete fit, as a share of the objective; 0 if none is possible, NaN if it is unknown.

    The estimate of a small gain may be negative, which a gain is not.
    """
    gain_error: float
    """Standard error of that share."""
    drift: Drift | None
    """Comparison of the rows of the last update with those before; None before the first."""

    @classmethod
    def begun(cls, rows: int, weight: float, sums: Baseline) -> Self:
        """Return the record of a complete fit whose last pass had these sums."""
        return cls(rows, 0, float(weight), [], Baseline.of(sums), 0.0, 0.0, None)

    def grown(self, rows: int, weight: float, batches: list[str], baseline: Baseline, drift: Drift, gain: Gain) -> Self:
        """Return the record after rows were added: ``batches`` and ``baseline`` are those of all."""
        return replace(
            self,
            added_rows=self.added_rows + rows,
            weight=self.weight + float(weight),
            batches=batches,
            baseline=baseline,
            gain_share=gain.share,
            gain_error=gain.error,
            drift=drift,
        )

    @property
    def n_rows(self) -> int:
        """Number of all rows."""
        return self.fitted_rows + self.added_rows

    @property
    def gain(self) -> Gain:
        """The estimated gain of a complete fit."""
        return Gain(self.gain_share, self.gain_error)

    @property
    def fitted_share(self) -> float:
        """Share of all rows that the last complete fit has seen."""
        return self.fitted_rows / self.n_rows

    def describe(self) -> str:
        """Return one sentence on the rows that were added, and what a complete fit would gain."""
        seen = f"{self.added_rows} of {self.n_rows} rows were added since the last complete fit"
        if self.gain == EXACT:
            return f"{seen}, and the result equals a complete fit"
        if np.isnan(self.gain_share):
            return f"{seen}; what a complete fit would gain is not known"
        gain = f"{seen}; a complete fit would lower the objective by an estimated {100 * self.gain_share:.2f}%"
        gain += f" (standard error {100 * self.gain_error:.2f}%)"
        if self.gain.worth_a_fit:
            return f"{gain}; fit all rows again"
        return f"{gain}; whether it is worth one is not determined" if self.gain.may_be_worth_a_fit else gain


SAVED: tuple[type[Any], ...] = (Growth, Baseline, Drift)
"""The dataclasses among the fitted attributes of a model that grows."""
