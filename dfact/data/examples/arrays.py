"""Simulated ratings, spectra, measurements and documents, for ``dfact demo`` and the guides of their models."""

from pathlib import Path

import numpy as np
import pandas as pd

_PEAKS = ((60, (0.2, 0.45, 0.7)), (30, (0.3, 0.5, 0.8)))
"""Length of each mode of the spectra, and the centers of the substances' peaks as shares of it."""

_TOPICS = (
    "goal match player team coach season league ball referee stadium",
    "onion garlic pepper oven butter flour recipe dinner sauce salt",
    "orbit planet rocket star moon telescope galaxy launch crew comet",
    "violin concert piano choir opera melody orchestra rhythm singer drum",
)
"""Words of four topics, the most frequent first."""


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


def write_air(folder: Path) -> None:
    """Write ``air.csv``: twelve measurements of the air on 300 days, 6% of them missing, and ``later.csv`` of 30 further days.

    Traffic and heating pollute the air, on warm days there is more ozone, and wind disperses what there is.
    """
    rng = np.random.default_rng(0)
    n, days = 330, np.arange(330)
    warmth = np.sin(2 * np.pi * (days - 100) / 365) + rng.normal(0, 0.4, n)
    wind, traffic = rng.normal(size=n), rng.normal(size=n) + 0.5 * (days % 7 < 5)
    heating = np.maximum(-warmth, 0) + rng.normal(0, 0.2, n)
    sources = np.stack([warmth, wind, traffic, heating], axis=1)
    rows = {
        "NO": (0, -6, 14, 2, 30, 4), "NO2": (-2, -5, 9, 2, 40, 4), "CO": (0, -0.05, 0.14, 0.1, 0.6, 0.05),
        "soot": (0, -0.3, 0.8, 0.5, 2, 0.2),
        "SO2": (0, -0.3, 0.1, 1.5, 3, 0.4), "PM10": (-1, -4, 4, 9, 28, 4), "PM2.5": (-1, -3, 2, 8, 18, 3), "ozone": (20, 4, -9, -3, 60, 7),
        "temperature": (9, -0.5, 0, -2, 12, 1.5), "humidity": (-8, -2, 0, 3, 70, 5), "wind": (0, 2, 0, 0, 4, 0.4),
        "sunshine": (3, 0, 0, -1, 6, 1.2),
    }  # fmt: skip
    effects = np.array(list(rows.values()))
    table = effects[:, 4] + sources @ effects[:, :4].T + effects[:, 5] * rng.normal(size=(n, len(rows)))
    frame = pd.DataFrame(table.round(3), columns=list(rows)).mask(rng.random(table.shape) < 0.06)
    frame.insert(0, "day", [f"d{day + 1:03}" for day in days])
    frame.iloc[:300].to_csv(folder / "air.csv", index=False)
    frame.iloc[300:].to_csv(folder / "later.csv", index=False)


def write_documents(folder: Path) -> None:
    """Write ``documents.csv``: how often each of 40 words occurs in 300 documents, which have one topic or mix a few of four."""
    rng = np.random.default_rng(0)
    words = [word for topic in _TOPICS for word in topic.split()]
    frequencies = np.kron(np.eye(len(_TOPICS)), 0.8 ** np.arange(10)) + 0.01
    shares = rng.dirichlet(np.full(len(_TOPICS), 0.2), 300)
    counts = rng.poisson(rng.uniform(20, 80, (300, 1)) * shares @ (frequencies / frequencies.sum(axis=1, keepdims=True)))
    frame = pd.DataFrame(counts, columns=words)
    frame.insert(0, "document", [f"d{i}" for i in range(len(frame))])
    frame.to_csv(folder / "documents.csv", index=False)
