"""Genotypes as other programs leave them: files that do not belong together, unknown populations, names of chromosomes."""

from pathlib import Path

import numpy as np
import pytest

import dfact
from dfact.errors import DataError, ParameterError
from dfact.genetics.examples import names_of, write_bed
from dfact.genetics.pong import write_pong

HEADER = "##fileformat=VCFv4.2\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT\ta\tb\tc\n"


def bed(folder: Path, n: int, seed: int = 0) -> Path:
    G = np.random.default_rng(seed).integers(0, 3, (n, 12)).astype(np.uint8)
    return write_bed(folder / "cohort.bed", G, names_of(12))


def vcf(folder: Path, chromosomes: list[str], filtered: str = "PASS") -> Path:
    lines = [f"{name}\t{j}\trs{j}\tA\tG\t.\t{filtered}\t.\tGT\t0/0\t0/1\t1/1\n" for j, name in enumerate(chromosomes, 1)]
    (folder / "c.vcf").write_text(HEADER + "".join(lines), encoding="utf-8")
    return folder / "c.vcf"


@pytest.mark.parametrize("n", [5, 6, 7, 8])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_fam_file_with_fewer_individuals_is_refused(tmp_path: Path, n: int, seed: int) -> None:
    source = bed(tmp_path, n, seed)
    assert dfact.import_genotypes(source, tmp_path / "whole.zarr").shape == (n, 12)
    fam = tmp_path / "cohort.fam"
    fam.write_text("".join(fam.read_text(encoding="utf-8").splitlines(keepends=True)[1:]), encoding="utf-8")
    with pytest.raises(DataError, match=r"(genotypes after the|bytes, expected \d+ for the) \d individuals of the \.fam file"):
        dfact.import_genotypes(source, tmp_path / "g.zarr")
    assert not (tmp_path / "g.zarr").exists()


@pytest.mark.parametrize(
    ("code", "kind"), [*((code, kind) for code in ("-9", "NA", ".", "nan", "-") for kind in ("table", "lines")), ("", "table")]
)
def test_codes_of_an_unknown_population(tmp_path: Path, code: str, kind: str) -> None:
    names = [code, "north", "south", "north", "south", code]
    source, file = bed(tmp_path, 6), tmp_path / ("p.csv" if kind == "table" else "p.txt")
    labels = dfact.import_genotypes(source, tmp_path / "g.zarr").row_labels
    rows = ["id,population", *(f"{label},{name}" for label, name in zip(labels, names, strict=True))] if kind == "table" else names
    file.write_text("\n".join(rows) + "\n", encoding="utf-8")
    notes: list[str] = []
    dataset = dfact.import_genotypes(source, tmp_path / "g.zarr", population=file, note=notes.append, overwrite=True)
    population = dataset.genotypes.population
    assert [*population.categories] == ["north", "south"]
    assert [*population.isna()] == [True, False, False, False, False, True]
    said = [note for note in notes if "unknown population" in note]
    assert said == ([f"populations: 2 individual(s) with {code} are of unknown population"] if code not in ("", "-") else [])


def test_an_empty_file_of_populations_is_refused(tmp_path: Path) -> None:
    source, empty = bed(tmp_path, 6), tmp_path / "p.txt"
    empty.write_text("", encoding="utf-8")
    with pytest.raises(DataError, match=r"p\.txt is empty, expected the populations of"):
        dfact.import_genotypes(source, tmp_path / "g.zarr", population=empty)


@pytest.mark.parametrize("name", ["NC_000023.11", "NC_000024.10", "NC_012920.1", "chrX_KI270880v1_alt", "chromosomeX", "X_PAR", "chrM"])
def test_sex_chromosomes_and_mitochondria_of_any_name_are_left_out(tmp_path: Path, name: str) -> None:
    dataset = dfact.import_genotypes(vcf(tmp_path, ["1", name, "NC_000022.11", "chr3", "chr9_KI270718v1_random"]), tmp_path / "g.zarr")
    assert [*dataset.column_labels] == ["rs1", "rs3", "rs4", "rs5"]


def test_accessions_are_named_by_their_chromosome(tmp_path: Path) -> None:
    source = vcf(tmp_path, ["NC_000001.11", "NC_000010.11", "NC_000022.11", "NC_000023.11"])
    taken = dfact.import_genotypes(source, tmp_path / "g.zarr", chromosomes=["1", "22-23"])
    assert [*taken.column_labels] == ["rs1", "rs3", "rs4"]
    with pytest.raises(ParameterError, match=r"chromosomes is '2' and c\.vcf has NC_000001\.11"):
        dfact.import_genotypes(source, tmp_path / "h.zarr", chromosomes=["2"])


def test_filters_that_leave_nothing_are_named(tmp_path: Path) -> None:
    source = vcf(tmp_path, ["1", "2"], filtered="q10")
    with pytest.raises(DataError, match=r"2 variant\(s\) fail a filter of the file: --keep-failing takes them"):
        dfact.import_genotypes(source, tmp_path / "g.zarr")
    assert dfact.import_genotypes(source, tmp_path / "g.zarr", keep_failing=True).shape == (3, 2)


def test_a_refused_run_leaves_no_folder_for_pong(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a run of K = 2 has 2 individuals, expected 3"):
        write_pong(tmp_path / "runs", [np.full((2, 2), 0.5)], ["north", "south", "north"])
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("kind", ["DS", "GP"])
def test_dosages_without_calls_name_the_command(tmp_path: Path, kind: str) -> None:
    (tmp_path / "c.vcf").write_text(HEADER + f"1\t1\trs1\tA\tG\t.\tPASS\t.\t{kind}\t0\t1\t2\n", encoding="utf-8")
    with pytest.raises(DataError, match=rf"has the FORMAT '{kind}', expected GT first.*plink2 --vcf c\.vcf dosage={kind} --make-bed"):
        dfact.import_genotypes(tmp_path / "c.vcf", tmp_path / "g.zarr")


def test_a_fam_file_with_names_of_columns_is_refused(tmp_path: Path) -> None:
    source = bed(tmp_path, 6)
    fam = tmp_path / "cohort.fam"
    lines = fam.read_text(encoding="utf-8").splitlines()[:5]
    fam.write_text("\n".join(["FID IID PAT MAT SEX PHENO", *lines]) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"line 1 of cohort\.fam has the names of columns"):
        dfact.import_genotypes(source, tmp_path / "g.zarr")
