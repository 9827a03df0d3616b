"""Steps 3 and 4 of ICQF's ADMM on one block, with the dual and Z kept as one state array."""

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import kernel


@kernel
def admm_fill(
    M: NDArray[np.floating],
    R: NDArray[np.floating],
    S: NDArray[np.floating],
    B: NDArray[np.floating],
    lower: NDArray[np.floating],
    upper: NDArray[np.floating],
    rho_before: float,
    rho: float,
    sample_weight: NDArray[np.floating],
    residuals: NDArray[np.float64],
) -> tuple[float, float]:
    """Update the state S (n, m) in place and write the target B (n, m) of the factor updates.

    M (n, m) holds the answers, NaN where missing, R = [W, C]Qᵀ (n, m) the model, lower and upper (m) its
    bounds, sample_weight (n) the weights of the rows in the sums. The state represents Z and the dual A:
    Z = clip(S); A = M − S where answered, ρ(Z − S) where missing, with the ρ of the step that wrote it. So the paper's

        Z ← clip((O∘M + ρR − A) / (ρ + O)),   A ← A + ρ(Z − R),   B = Z + A/ρ

    become, entry by entry,

        answered:  z = clip((s + ρr) / (1 + ρ)),               s ← s − ρ(z − r),   b = z + (m − s)/ρ
        missing:   t = r + (ρ_before/ρ)(s − clip(s)), z = clip(t),  s ← t,         b = 2z − t

    Returns Σ (m − r)² over answered entries, and the entries' share of the augmented Lagrangian
    Σ ½(m − z)² + a(z − r) + ρ/2 (z − r)². Where ``residuals`` (2) is not empty, ‖Z − R‖² and ‖ΔZ‖² are added to it.
    """
    dtype = R.dtype.type
    zero, half, one = dtype(0), dtype(0.5), dtype(1)
    p, ratio = dtype(rho), dtype(rho_before / rho)
    mix, inverse = one / (one + p), one / p
    adaptive = len(residuals) > 0
    squares, lagrangian = 0.0, 0.0
    for i in range(M.shape[0]):
        # Sums over a row are in the working precision, sums over rows in double.
        row_squares, row_lagrangian, primal, dual = zero, zero, zero, zero
        for j in range(M.shape[1]):
            answered = M[i, j] == M[i, j]
            m = M[i, j] if answered else zero
            r, s, lo, hi = R[i, j], S[i, j], lower[j], upper[j]
            # Both branches are computed and one is selected, so that the loop vectorises.
            inside = min(max(s, lo), hi)
            t_answered = (s + p * r) * mix
            t_missing = r + ratio * (s - inside)
            t = t_answered if answered else t_missing
            z = min(max(t, lo), hi)
            gap = z - r
            s = s - p * gap if answered else t
            a = m - s if answered else p * (z - t)
            S[i, j] = s
            B[i, j] = z + a * inverse
            error = m - r if answered else zero
            split = m - z if answered else zero
            row_squares += error * error
            row_lagrangian += half * split * split + gap * (a + half * p * gap)
            if adaptive:
                primal += gap * gap
                dual += (z - inside) * (z - inside)
        squares += float(sample_weight[i] * row_squares)
        lagrangian += float(sample_weight[i] * row_lagrangian)
        if adaptive:
            residuals[0] += float(primal)
            residuals[1] += float(dual)
    return squares, lagrangian
