"""Principal components of 324 people of HapMap 3 at 13,928 SNPs, next to NumPy and PLINK 2."""

import gzip
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dfact
from tests.conftest import REAL_DATA
from tests.genetics.test_admixture import read_bed

Array = NDArray[Any]
HAPMAP = REAL_DATA / "genotypes" / "hapmap3"
_NOT_AUTOSOMAL = (23, 24, 26)  # X, Y and the mitochondria, which PLINK leaves out; 25 is shared by X and Y


@pytest.fixture(scope="module")
def genotypes() -> Array:
    if not HAPMAP.is_dir():
        pytest.skip("HapMap 3 is not beside the project")
    return read_bed(HAPMAP / "hapmap3.bed", 324, 13928)


@pytest.mark.further
def test_components_of_genotypes_are_those_of_their_relationship_matrix(genotypes: Array) -> None:
    G = genotypes[:, np.nanstd(genotypes, axis=0) > 0].astype(float)
    p = np.nanmean(G, axis=0) / 2
    Z = np.nan_to_num((G - 2 * p) / np.sqrt(2 * p * (1 - p)))
    values, vectors = np.linalg.eigh(Z @ Z.T)
    model = dfact.PCA(3, scale="binomial", missing="mean", dtype="float64").fit(genotypes)
    np.testing.assert_allclose(model.singular_values_**2, values[:-4:-1], rtol=1e-6)
    correlations = np.abs(vectors[:, :-4:-1].T @ (model.factors_ / model.singular_values_))
    np.testing.assert_allclose(correlations, np.eye(3), atol=1e-4)
    expected = dfact.PCA(2, scale="binomial").fit(genotypes)  # 0.2% are missing: expectations hardly differ from means
    assert np.abs((expected.components_ * model.components_[:2]).sum(axis=1)).min() > 0.99


def test_eigenvalues_are_those_of_plink(genotypes: Array, tmp_path: Path) -> None:
    program = shutil.which("plink2")
    if program is None:
        pytest.skip("plink2 is not installed")
    for suffix in (".bed", ".fam"):
        shutil.copy(HAPMAP / f"hapmap3{suffix}", tmp_path)
    (tmp_path / "hapmap3.bim").write_bytes(gzip.decompress((HAPMAP / "hapmap3.bim.gz").read_bytes()))
    subprocess.run([program, "--bfile", "hapmap3", "--pca", "5", "--out", "plink"], cwd=tmp_path, check=True, capture_output=True)
    chromosome = np.loadtxt(tmp_path / "hapmap3.bim", usecols=0, dtype=int)
    autosomal = genotypes[:, ~np.isin(chromosome, _NOT_AUTOSOMAL)]
    found, expected = (
        dfact.PCA(5, scale="binomial", missing="mean", dtype="float64").fit(autosomal),
        np.loadtxt(tmp_path / "plink.eigenval"),
    )
    # PLINK divides the products of two people by the number of SNPs that both have, not by the number of all.
    np.testing.assert_allclose(found.singular_values_**2 / autosomal.shape[1], expected, rtol=0.01)
    G = autosomal.astype(float)
    p = np.nanmean(G, axis=0) / 2
    with np.errstate(invalid="ignore"):
        Z = np.nan_to_num((G - 2 * p) / np.sqrt(2 * p * (1 - p)))
    both = (~np.isnan(G)).astype(float)
    np.testing.assert_allclose(np.linalg.eigvalsh(Z @ Z.T / (both @ both.T))[:-6:-1], expected, rtol=1e-4)
