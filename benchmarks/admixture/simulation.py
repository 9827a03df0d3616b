"""Simulated genotypes, written in bounded memory: as a dataset by rows, and as a .bed file by variants."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

import dfact
from dfact.data.synthetic import PlantedAdmixture
from dfact.genetics.genotype_file import pack
from dfact.genetics.kernels import MISSING
from dfact.imports.writing.writer import dataset_writer
from dfact.storage.location import parse_location

_VARIANTS = 200  # written to a .bed file at a time


def write_dataset(planted: PlantedAdmixture, path: Path, progress: Callable[[int, int], None] | None = None) -> dfact.Dataset:
    """Write planted genotypes as a dataset, 100 people at a time."""
    columns = np.array([f"rs{j}" for j in range(planted.m)], dtype=object)
    with dataset_writer(
        parse_location(path),
        (planted.n, planted.m),
        np.dtype(np.uint8),
        missing_code=MISSING,
        column_labels=columns,
        name="simulated genotypes",
        overwrite=True,
    ) as writer:
        writer.finish(writer.write(planted.blocks(), progress=progress), valid_range=np.tile([0.0, 2.0], (planted.m, 1)))
    return dfact.open_dataset(path)


def root_mean_square_error(Q: NDArray[np.float64], true: NDArray[np.float64]) -> float:
    """Return the error of memberships (n, k), whose columns are matched with the true ones."""
    order = linear_sum_assignment(np.square(Q[:, None, :] - true[:, :, None]).sum(axis=0))[1]
    return float(np.sqrt(np.square(Q[:, order] - true).mean()))


def write_bed(path: Path, n: int, m: int, seed: int = 0, missing: float = 0.003) -> None:
    """Write a .bed file of unrelated people from one population, with its .bim and .fam."""
    rng = np.random.default_rng(seed)
    with path.open("wb") as file:
        file.write(b"\x6c\x1b\x01")
        for start in range(0, m, _VARIANTS):
            shape = min(_VARIANTS, m - start), n
            frequency = (0.05 + 0.9 * rng.beta(0.8, 0.8, (shape[0], 1))).astype(np.float32)
            uniform = rng.random(shape, np.float32)
            genotypes = (uniform < frequency**2).astype(np.uint8) + (uniform < 1 - (1 - frequency) ** 2)
            genotypes[rng.random(shape, np.float32) < missing] = MISSING
            file.write(pack(genotypes).tobytes())
    write_lists(path, n, m)


def write_lists(path: Path, n: int, m: int) -> None:
    """Write the .fam and the .bim of a .bed file with n people and m variants on 22 chromosomes."""
    with path.with_suffix(".fam").open("w") as file:
        file.writelines(f"f{i} p{i} 0 0 0 -9\n" for i in range(n))
    with path.with_suffix(".bim").open("w") as file:
        file.writelines(f"{1 + j * 22 // m}\trs{j}\t0\t{1000 * j + 1}\tA\tG\n" for j in range(m))
