"""Planted data: simulations of the ICQF, grade-of-membership and elastic-net PARAFAC papers; questionnaires, genotypes of any size."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Planted:
    """Answers M (n, m) and their planted factors W (n, k), Q (m, k)."""

    M: NDArray[np.float64]
    W: NDArray[np.float64]
    Q: NDArray[np.float64]


def icqf_simulation(noise: float, seed: int) -> Planted:
    """Simulate the data of the ICQF paper (table 1): 200 × 100 answers in [0, 100], 10 factors.

    W = D∘a∘b with D binary in steps of 20 participants, a ~ U(½, 1), b ~ Bernoulli(0.9). Each factor has its own 20 participants
    and 10 of those of the factor before it, so that it is alone for 10 and in tandem for 20. The paper says 20 in isolation and 10
    more in tandem, for which its 200 participants are too few. Q = c∘d, c ~ U(0, 100), d ~ Bernoulli(0.3);
    M = clip(clip(WQᵀ) + e∘f), f ~ U(−100, 100), e ~ Bernoulli(noise).
    """
    rng = np.random.default_rng(seed)
    n, m, k = 200, 100, 10
    D = np.zeros((n, k))
    for factor in range(k):
        rows = slice(20 * factor, 20 * factor + 20)
        D[rows, factor] = 1
        D[rows.start : rows.start + 10, (factor + 1) % k] = 1
    W = D * rng.uniform(0.5, 1, (n, k)) * (rng.random((n, k)) < 0.9)
    Q = rng.uniform(0, 100, (m, k)) * (rng.random((m, k)) < 0.3)
    clean = np.clip(W @ Q.T, 0, 100)
    error = (rng.random((n, m)) < noise) * rng.uniform(-100, 100, (n, m))
    return Planted(np.clip(clean + error, 0, 100), W, Q)


@dataclass(frozen=True)
class PlantedMemberships:
    """Responses R (N, J) from 0 (no response) to M, and their planted memberships Π (N, K) and item parameters Θ (J, K)."""

    R: NDArray[np.int64]
    memberships: NDArray[np.float64]
    item_parameters: NDArray[np.float64]

    @property
    def expected(self) -> NDArray[np.float64]:
        """ΠΘᵀ (N, J), the value of R without noise."""
        return self.memberships @ self.item_parameters.T


def gom_simulation(rho: float, n: int, seed: int, n_items: int | None = None) -> PlantedMemberships:
    """Simulate the data of the grade-of-membership paper (section 7.3): n subjects, n/4 items, 3 classes, responses from 0 to 4.

    The first three quarters of the subjects are pure, a quarter in each class; the others have the
    memberships (r₁, r₂, 1 − r₁ − r₂), r ~ U(0, ½). Θ = ρB with B ~ U(0, 1), scaled to a maximum of 1:
    more responses are nonzero for larger ρ ≤ 4. R ~ Binomial(4, ΠΘᵀ / 4).
    """
    rng = np.random.default_rng(seed)
    k, levels, quarter = 3, 4, n // 4
    r = rng.uniform(0, 0.5, (n - k * quarter, k - 1))
    memberships = np.vstack([np.repeat(np.eye(k), quarter, axis=0), np.column_stack([r, 1 - r.sum(axis=1)])])
    B = rng.random((quarter if n_items is None else n_items, k))
    item_parameters = rho * B / B.max()
    return PlantedMemberships(rng.binomial(levels, memberships @ item_parameters.T / levels), memberships, item_parameters)


@dataclass(frozen=True)
class PlantedTensor:
    """A tensor Z (I, I, I), NaN where missing, and its planted factors (I, R)."""

    Z: NDArray[np.float64]
    factors: list[NDArray[np.float64]]

    @property
    def zeros(self) -> int:
        """Number of entries of the factors that are 0."""
        return sum(int((A == 0).sum()) for A in self.factors)


def elastic_cp_simulation(size: int, rank: int, seed: int, *, snr: float = np.inf, missing: float = 0.0) -> PlantedTensor:
    """Simulate the data of the elastic-net PARAFAC paper (section 7.1): I × I × I, components from the model's prior.

    R_n is diagonal, its first entry uniform on [101, 131], [1001, 1021] and [10001, 10011] for the three
    modes, the others on [1, 31], [1, 21] and [1, 11]. Entries of the factors have the density
    ∝ exp(−a²/(2R_n(i, i)) − 0.1|a|), by rejection; those within ±0.5 are set to 0. Normal noise of
    ``snr`` decibels is added, and a proportion ``missing`` of the entries is set to NaN.
    """
    rng = np.random.default_rng(seed)
    factors = []
    for low, width, top in ((101, 30, 31), (1001, 20, 21), (10001, 10, 11)):
        variances = np.r_[rng.uniform(low, low + width), rng.uniform(1, top, size - 1)]
        A = np.zeros((size, rank))
        rejected = np.ones(A.shape, bool)
        while rejected.any():
            proposals = rng.normal(0, np.sqrt(variances)[:, None], A.shape)
            accepted = rejected & (rng.random(A.shape) < np.exp(-0.1 * np.abs(proposals)))
            A[accepted] = proposals[accepted]
            rejected &= ~accepted
        factors.append(np.where(np.abs(A) < 0.5, 0.0, A))
    X = np.einsum("ir,jr,kr->ijk", *factors)
    Z = X + rng.standard_normal(X.shape) * np.sqrt(X.var() / 10 ** (snr / 10))
    Z[rng.random(X.shape) < missing] = np.nan
    return PlantedTensor(Z, factors)


@dataclass(frozen=True)
class PlantedQuestionnaire:
    """Answers 0, 1, …, top (255 = missing) of any number of participants, independent of the chunking.

    Loadings are uniform on [0, top], factors on [0, 1], both zero for 70%; answers are the rounded
    model with normal noise of standard deviation ½.
    """

    n: int
    m: int
    k: int
    top: int = 3
    missing: float = 0.05
    seed: int = 0

    _STEP = 1000  # rows of one random stream
    MISSING_CODE = 255

    @property
    def Q(self) -> NDArray[np.float32]:
        """Loadings (m, k)."""
        rng = np.random.default_rng([self.seed, 0])
        return (rng.uniform(0, self.top, (self.m, self.k)) * (rng.random((self.m, self.k)) < 0.3)).astype(np.float32)

    def chunks(self, rows: int) -> Iterator[NDArray[np.uint8]]:
        """Yield the answers, ``rows`` (rounded up to thousands) at a time."""
        Q = self.Q
        parts: list[NDArray[np.uint8]] = []
        for start in range(0, self.n, self._STEP):
            rng = np.random.default_rng([self.seed, 1 + start // self._STEP])
            size = min(self._STEP, self.n - start)
            W = (rng.random((size, self.k), np.float32) * (rng.random((size, self.k)) < 0.3)).astype(np.float32)
            noise = rng.standard_normal((size, self.m), np.float32) / 2
            answers = np.rint(np.clip(W @ Q.T + noise, 0, self.top)).astype(np.uint8)
            answers[rng.random((size, self.m), np.float32) < self.missing] = self.MISSING_CODE
            parts.append(answers)
            if sum(map(len, parts)) >= rows or start + size == self.n:
                yield np.concatenate(parts)
                parts = []


@dataclass(frozen=True)
class PlantedAdmixture:
    """Genotypes 0, 1, 2 of any number of people with ancestry from k populations.

    The ancestral frequencies are 0.05 + 0.9 · Beta(0.8, 0.8). Population k drifts from them by F_k ~ U(0.05, 0.1): its
    frequencies are Beta(p(1 − F)/F, (1 − p)(1 − F)/F), within [0.001, 0.999]. The first fifth of the people are of one population
    each, in turn; the others have memberships from Dirichlet(0.3, …). A genotype is Binomial(2, QP).
    """

    n: int
    m: int
    k: int
    seed: int = 1
    Q: NDArray[np.float64] = field(init=False, repr=False)
    """Memberships (n, k)."""
    P: NDArray[np.float64] = field(init=False, repr=False)
    """Frequencies (k, m)."""
    _generator: np.random.Generator = field(init=False, repr=False)

    _STEP = 100  # rows drawn at a time

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        ancestral = 0.05 + 0.9 * rng.beta(0.8, 0.8, self.m)
        drift = rng.uniform(0.05, 0.1, self.k)[:, None]
        scale = (1 - drift) / drift
        P = np.clip(rng.beta(ancestral * scale, (1 - ancestral) * scale), 0.001, 0.999)
        pure = self.n // 5
        Q = rng.dirichlet(np.full(self.k, 0.3), self.n)
        Q[:pure] = np.eye(self.k)[np.arange(pure) % self.k]
        for name, value in (("Q", Q), ("P", P), ("_generator", rng)):
            object.__setattr__(self, name, value)

    def blocks(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the genotypes, 100 people at a time; the same ones each time."""
        rng = np.random.Generator(np.random.PCG64())
        rng.bit_generator.state = self._generator.bit_generator.state
        for start in range(0, self.n, self._STEP):
            yield rng.binomial(2, np.minimum(self.Q[start : start + self._STEP] @ self.P, 1.0)).astype(np.uint8)
