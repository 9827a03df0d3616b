"""Simulated ratings and spectra, for ``dfact demo`` and the guides on expectiles and tensors."""

from pathlib import Path

import numpy as np
import pandas as pd

_PEAKS = ((60, (0.2, 0.45, 0.7)), (30, (0.3, 0.5, 0.8)))
"""Length of each mode of the spectra, and the centers of the substances' peaks as shares of it."""


def write_ratings(folder: Path) -> None:
    """Write ``ratings.csv``: 120 users and 40 films, of whose ratings half are known. They are skewed: few are far below five stars."""
    rng = np.random.default_rng(0)
    faults = rng.gamma(2, 0.5, (120, 3)) @ rng.gamma(2, 0.2, (3, 40)) + rng.exponential(0.3, (120, 40))
    stars = np.clip(np.rint(2 * (5.5 - faults)) / 2, 0.5, 5)
    users, films = np.nonzero(rng.random(stars.shape) < 0.5)
    frame = pd.DataFrame({"user": [f"u{i}" for i in users], "film": [f"film {j}" for j in films], "stars": stars[users, films]})
    frame.to_csv(folder / "ratings.csv", index=False)


def write_spectra(folder: Path) -> None:
    """Write ``spectra.npz``: an array X of 20 samples × 60 × 30 wavelengths, in which three substances fluoresce."""
    rng = np.random.default_rng(0)
    emission, excitation = (np.stack([np.exp(-(((np.arange(n) - n * c) / (n * 0.12)) ** 2)) for c in centers]) for n, centers in _PEAKS)
    spectra = np.einsum("ir,rj,rk->ijk", rng.uniform(0.2, 2, (20, 3)), emission, excitation)
    np.savez(folder / "spectra.npz", X=spectra + rng.normal(0, 0.01, spectra.shape))
