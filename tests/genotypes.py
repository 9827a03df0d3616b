"""Genotypes of planted admixtures, and their files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dfact.data.readers.genotypes import pack
from dfact.data.synthetic import PlantedAdmixture


def planted_genotypes(n: int, m: int, k: int, seed: int, missing: float = 0.01) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Return genotypes (n, m) of k populations, 9 where missing, and the memberships (n, k)."""
    planted = PlantedAdmixture(n, m, k, seed=seed)
    G = np.concatenate(list(planted.blocks()))
    G[np.random.default_rng(seed).random(G.shape) < missing] = 9
    return G, planted.Q


def write_cohort(path: Path, G: NDArray[np.uint8], populations: Sequence[str] | None = None, first: int = 0) -> None:
    """Write a .bed file with its .bim and .fam, and a .pop if there are populations; people are numbered from ``first``."""
    n, m = G.shape
    path.write_bytes(b"\x6c\x1b\x01" + pack(np.ascontiguousarray(G.T)).tobytes())
    path.with_suffix(".bim").write_text("".join(f"{1 + j * 3 // m}\trs{j}\t0\t{1000 * j}\tC\tT\n" for j in range(m)))
    path.with_suffix(".fam").write_text("".join(f"0 p{first + i} 0 0 0 -9\n" for i in range(n)))
    if populations is not None:
        path.with_suffix(".pop").write_text("".join(f"{name}\n" for name in populations))
