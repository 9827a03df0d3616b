"""Simulated genotypes as PLINK files, for ``dfact demo genotypes`` and the guide on admixture."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dfact.data.synthetic import PlantedAdmixture
from dfact.genetics.genotype_file import pack

_SETTLED, _NEWCOMERS = slice(0, 140), slice(140, 160)
_VARIANTS = 2000
_POPULATIONS = ("south", "west", "north")


def write_cohort(folder: Path) -> None:
    """Write ``cohort.bed`` of 140 people and ``newcomers.bed`` of 20 others.

    Each .bed has its .bim and .fam, and a .pop with the populations of people who descend from one.
    """
    G, Q = planted_genotypes(160, _VARIANTS, 3, 0)
    for name, rows in (("cohort", _SETTLED), ("newcomers", _NEWCOMERS)):
        populations = [_POPULATIONS[q.argmax()] if q.max() > 0.8 else "-" for q in Q[rows]]
        fam = [f"0 p{i} 0 0 0 -9" for i in range(len(G))][rows]
        write_bed(folder / f"{name}.bed", G[rows], fam=fam, populations=populations)


def planted_genotypes(n: int, m: int, k: int, seed: int, missing: float = 0.01) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Return genotypes (n, m) of k populations, 9 where missing, and the memberships (n, k)."""
    planted = PlantedAdmixture(n, m, k, seed=seed)
    G = np.concatenate(list(planted.blocks()))
    G[np.random.default_rng(seed).random(G.shape) < missing] = 9
    return G, planted.Q


def names_of(m: int) -> list[str]:
    """Return the names of m variants."""
    return [f"rs{j}" for j in range(m)]


def write_bed(
    path: Path,
    G: NDArray[np.uint8],
    names: Sequence[str] | None = None,
    fam: Sequence[str] | None = None,
    populations: Sequence[str] | None = None,
) -> Path:
    """Write a .bed file with its .bim and .fam, and a .pop if there are populations; A1 is C, A2 is T."""
    n, m = G.shape
    path.write_bytes(b"\x6c\x1b\x01" + pack(np.ascontiguousarray(G.T)).tobytes())
    write_bim(path.with_suffix(".bim"), names or names_of(m))
    path.with_suffix(".fam").write_text("\n".join(fam or [f"f{i} p{i} 0 0 0 -9" for i in range(n)]) + "\n")
    if populations is not None:
        path.with_suffix(".pop").write_text("".join(f"{name}\n" for name in populations))
    return path


def write_bim(path: Path, names: Sequence[str], alleles: Sequence[str] | None = None) -> None:
    """Write a .bim file of three chromosomes; ``alleles`` are A1 and A2 of each variant, such as "C T"."""
    pairs = alleles or ["C T"] * len(names)
    m = len(names)
    lines = (f"{1 + 3 * j // m}\t{name}\t{j / 8}\t{1000 + j}\t{pair}\n" for j, (name, pair) in enumerate(zip(names, pairs, strict=True)))
    path.write_text("".join(lines).replace(" ", "\t"))
