"""Sums of a grade of membership by likelihood, to which those of new subjects are added."""

from dataclasses import dataclass
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray

from dfact.models.binomial.growth import FrequencySurrogate
from dfact.models.fitted_schema import AtLeast, Shape
from dfact.models.gom.passes import MembershipSums, modularity


@dataclass(frozen=True, eq=False)
class ClassSums:
    """Sums over all subjects, each with the memberships of the time when it was added."""

    surrogate: FrequencySurrogate
    """Log-likelihood of the subjects as a function of Θᵀ/M."""
    cross: Annotated[NDArray[Any], Shape(("m", "k"))]
    """RᵀΠ (J, K)."""
    column_sums: Annotated[NDArray[Any], Shape(("m",))]
    """Rᵀ1 (J,)."""
    highly_pure: Annotated[float, AtLeast(0)]
    """Number of subjects whose highest membership is at least 0.9."""
    highly_mixed: Annotated[float, AtLeast(0)]
    """Number of subjects whose highest membership is at most 0.7."""

    @classmethod
    def of(
        cls,
        surrogate: FrequencySurrogate,
        sums: MembershipSums,
        column_sums: NDArray[Any],
        order: NDArray[np.intp],
        earlier: Self | None = None,
    ) -> Self:
        """Return the sums of a pass, with the classes in this order, added to earlier ones; the surrogate is that of all subjects."""
        cross, pure, mixed = sums.cross[:, order], float(sums.highly_pure[0]), float(sums.highly_mixed[0])
        if earlier is None:
            return cls(surrogate, cross, column_sums, pure, mixed)
        pure, mixed = pure + earlier.highly_pure, mixed + earlier.highly_mixed
        return cls(surrogate, cross + earlier.cross, column_sums + earlier.column_sums, pure, mixed)

    @property
    def modularity(self) -> float:
        """Fuzzy modularity of the memberships."""
        return modularity(self.cross, self.column_sums)
