"""Genotypes of PLINK and VCF Zarr: the same dataset from every format, and every invalid file refused with its reason."""

import gzip
import json
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr
from numcodecs import Pickle
from numpy.typing import NDArray

import dfact
from dfact.cli.main import main
from dfact.data.layout import Layout
from dfact.genetics import importer as ingest
from dfact.genetics.examples import names_of, write_bed
from tests.conftest import REAL_DATA

Genotypes = NDArray[np.uint8]


def draw(seed: int, n: int, m: int, missing: float = 0.1) -> Genotypes:
    """Persons × variants; each variant has a genotype."""
    rng = np.random.default_rng(seed)
    G = rng.binomial(2, rng.random(m), (n, m)).astype(np.uint8)
    G[rng.random(G.shape) < missing] = 9
    G[rng.integers(n, size=m), np.arange(m)] = 1
    return G


def write_pgen(path: Path, G: Genotypes, alts: Sequence[str] | None = None, calls: NDArray[np.int32] | None = None) -> Path:
    """Write a .pgen file with its .psam and .pvar: of biallelic variants, or of calls (variants, 2 · persons)."""
    pgenlib = pytest.importorskip("pgenlib")
    n, m = G.shape
    alts = alts or ["C"] * m
    limit = max(2 + alt.count(",") for alt in alts)
    with pgenlib.PgenWriter(str(path).encode(), n, variant_ct=m, nonref_flags=False, allele_ct_limit=limit) as writer:
        for j in range(m):
            if calls is None:
                writer.append_biallelic(np.where(G[:, j] == 9, -9, 2 - G[:, j].astype(np.int8)).astype(np.int8))
            else:
                writer.append_alleles(calls[j], allele_ct=2 + alts[j].count(","))
    path.with_suffix(".psam").write_text("#FID\tIID\tSEX\n" + "".join(f"f{i}\tp{i}\tNA\n" for i in range(n)))
    lines = [f"{1 + 3 * j // m}\t{1000 + j}\trs{j}\tT\t{alts[j]}\tDP=3\t{j / 8}\n" for j in range(m)]
    path.with_suffix(".pvar").write_text("##source=test\n#CHROM\tPOS\tID\tREF\tALT\tINFO\tCM\n" + "".join(lines))
    return path


def write_vcf_zarr(path: Path, calls: NDArray[np.int8], alleles: NDArray[Any], zarr_format: Any) -> Path:
    """Write a VCF Zarr store of calls (variants, persons, 2)."""
    m, n, _ = calls.shape
    group = zarr.create_group(path, zarr_format=zarr_format)
    arrays = {
        "call_genotype": calls,
        "sample_id": np.array([f"p{i}" for i in range(n)]),
        "contig_id": np.array(["1", "2", "3"]),
        "variant_contig": (3 * np.arange(m) // m).astype(np.int8),
        "variant_position": (1000 + np.arange(m)).astype(np.int32),
        "variant_id": np.array(names_of(m)),
        "variant_allele": alleles,
    }
    for name, values in arrays.items():
        if values.dtype.kind == "U":
            array = group.create_array(name, shape=values.shape, dtype="string", chunks=values.shape)
            array[...] = values.astype(object)
        else:
            group.create_array(name, data=values, chunks=(min(7, m), *values.shape[1:]))
    return path


def write_vcf(path: Path, calls: NDArray[np.int8]) -> Path:
    """Write a VCF file of calls (variants, persons, 2), compressed in several members, as bgzip does, if its name ends in .gz."""
    m, n, _ = calls.shape
    header = "##fileformat=VCFv4.2\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT\t" + "\t".join(f"p{i}" for i in range(n)) + "\n"
    lines = [header]
    for j in range(m):
        texts = [f"{'/|'[(i + j) % 2].join('.' if a < 0 else str(a) for a in calls[j, i])}:{i}" for i in range(n)]
        lines.append(f"{1 + 3 * j // m}\t{1000 + j}\trs{j}\tT\tC\t.\tPASS\tDP=3\tGT:DP\t" + "\t".join(texts) + "\n")
    parts = ["".join(lines[:20]), "".join(lines[20:])]
    if path.suffix == ".gz":
        path.write_bytes(b"".join(gzip.compress(part.encode()) for part in parts))
    else:
        path.write_text("".join(parts))
    return path


def to_calls(G: Genotypes) -> NDArray[np.int8]:
    """Calls (variants, persons, 2) in which 0 is A2."""
    g = G.T.astype(np.int8)
    calls = np.stack([g < 1, g < 2], axis=2).astype(np.int8)
    calls[g == 9] = -1
    return calls


def expected_dataset(G: Genotypes, path: Path, labels: Sequence[str] | None = None) -> dfact.Dataset:
    n, m = G.shape
    rows = labels or [f"p{i}" for i in range(n)]
    return dfact.import_array(G, path, missing=9, valid_range=(0, 2), row_labels=rows, column_labels=names_of(m), empty_rows="error")


# ---------------------------------------------------------------- the dataset


@pytest.mark.parametrize("seed", range(3))
def test_import_is_that_of_the_matrix(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    G = draw(seed, int(rng.integers(5, 200)), int(rng.integers(5, 400)))
    found = dfact.import_genotypes(write_bed(tmp_path / "a.bed", G), tmp_path / "a.zarr")
    expected = expected_dataset(G, tmp_path / "b.zarr")
    assert found.fingerprint == expected.fingerprint
    assert np.array_equal(found.source.read(0, len(G)), G)
    for name in ("observed", "minimum", "maximum"):
        assert np.array_equal(getattr(found.statistics, name), getattr(expected.statistics, name)), name
    variants = found.genotypes.variants
    assert variants is not None
    assert list(variants) == ["chromosome", "name", "cM", "position", "A1", "A2", "frequency"]
    assert [*variants.iloc[-1]][:-1] == ["3", f"rs{G.shape[1] - 1}", (G.shape[1] - 1) / 8, 999 + G.shape[1], "C", "T"]
    np.testing.assert_allclose(variants["frequency"], np.ma.masked_equal(G, 9).mean(axis=0) / 2)
    assert expected.genotypes.variants is None


def test_panels_and_threads_change_nothing_but_the_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "_PIECE_BYTES", 1000)
    G = draw(0, 333, 700)
    G[5], G[:, 650] = 9, 9
    source = write_bed(tmp_path / "a.bed", G)
    steps: list[tuple[int, int]] = []
    options: dict[str, Any] = {"empty_variants": "drop"}
    whole = dfact.import_genotypes(source, tmp_path / "whole.zarr", n_readers=1, progress=lambda *step: steps.append(step), **options)
    panels = dfact.import_genotypes(source, tmp_path / "panels.zarr", n_readers=2, memory_limit=2 * 300 * 84, **options)
    assert [array.chunks[1] for array in (whole.source.array, panels.source.array)] == [699, 256]  # type: ignore[attr-defined]  # stored
    assert whole.fingerprint == panels.fingerprint
    kept = np.delete(G, 650, axis=1)
    for rows in (slice(0, 333), slice(3, 4), slice(200, 333)):
        assert np.array_equal(panels.source.read(rows.start, rows.stop), kept[rows])
    assert whole.genotypes.dropped_variants == 1
    assert (panels.statistics.n_empty_rows, panels.statistics.empty_rows) == (1, [5])
    assert steps[-1][0] == steps[-1][1]
    assert all(a[0] <= b[0] for a, b in pairwise(steps))
    with pytest.raises(dfact.ParameterError, match="memory_limit is 20000 bytes, expected at least 43008 for 333 individuals; raise it"):
        dfact.import_genotypes(source, tmp_path / "c.zarr", memory_limit=20000, **options)


@pytest.mark.further
@pytest.mark.filterwarnings("ignore:only the subject")
def test_fit_of_a_dataset_in_narrow_chunks_has_the_same_bits(tmp_path: Path) -> None:
    source, memberships = write_bed(tmp_path / "a.bed", draw(1, 333, 700, missing=0.0)), []
    for limit in ("1GiB", 2 * 300 * 84):
        dataset = dfact.import_genotypes(source, tmp_path / f"{limit}.zarr", memory_limit=limit)
        memberships.append(dfact.GradeOfMembership(2, random_state=0).fit(dataset).memberships_)
    assert np.array_equal(*memberships)


def test_variants_without_genotypes_are_refused_or_dropped(tmp_path: Path) -> None:
    G = draw(0, 30, 20)
    G[:, [3, 11]] = 9
    G[:, 4] = np.where(np.arange(30) == 0, 9, 0)  # monomorphic
    source, notes = write_bed(tmp_path / "a.bed", G), list[str]()
    expected = (
        r"a.bed: 2 of 20 variants are invalid, expected none: 2 variant\(s\) with no genotype of any individual \(first 1:1003 'rs3' T>C\)"
    )
    with pytest.raises(dfact.DataError, match=expected):
        dfact.import_genotypes(source, tmp_path / "a.zarr")
    assert not (tmp_path / "a.zarr").exists()
    dataset = dfact.import_genotypes(source, tmp_path / "a.zarr", empty_variants="drop", note=notes.append)
    assert notes == ["dropped 2 variant(s) with no genotype of any individual (first 1:1003 'rs3' T>C)"]
    assert list(dataset.column_labels) == [name for name in names_of(20) if name not in ("rs3", "rs11")]
    assert dataset.genotypes.variants is not None
    assert list(dataset.genotypes.variants["name"]) == list(dataset.column_labels)
    with pytest.raises(dfact.ParameterError, match="empty_variants is 'keep', expected 'error' or 'drop'"):
        dfact.import_genotypes(source, tmp_path / "b.zarr", empty_variants="keep")  # type: ignore[arg-type]  # what is refused


def test_labels_are_unique(tmp_path: Path) -> None:
    G = draw(0, 3, 4)
    fam = ["f1 p1 0 0 0 -9", "f2\tp1\t0\t0\t0\t-9", "f2 p2 0 0 0 -9"]
    dataset = dfact.import_genotypes(write_bed(tmp_path / "a.bed", G, [".", "rs1", ".", "rs3"], fam), tmp_path / "a.zarr")
    assert list(dataset.row_labels) == ["f1_p1", "f2_p1", "f2_p2"]
    assert list(dataset.column_labels) == ["1:1000:C:T", "rs1", "2:1002:C:T", "rs3"]
    with pytest.raises(dfact.DataError, match=r"a.fam holds the individual 'f1_p1' twice, expected distinct individuals"):
        dfact.import_genotypes(write_bed(tmp_path / "a.bed", G, None, [fam[0], *fam[:2]]), tmp_path / "b.zarr")
    write_bed(tmp_path / "a.bed", G)
    (tmp_path / "a.bim").write_text("1 rs0 0 5 C T\n" * 4)
    with pytest.raises(dfact.DataError, match=r"4 variant\(s\) with the name, position and alleles of others \(first 1:5 'rs0' T>C\)"):
        dfact.import_genotypes(tmp_path / "a.bed", tmp_path / "b.zarr")


# ---------------------------------------------------------------- invalid files


def change(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda bed: bed.write_bytes(b""), "its content is empty"),
        (lambda bed: bed.write_bytes(b"This is text"), "it begins with b'This'"),
        (lambda bed: bed.write_bytes(b"\x6c\x1b"), "has 2 bytes, expected at least a header of 3"),
        (lambda bed: bed.write_bytes(b"\x6c\x1b\x00" + bytes(60)), "is person-major.*expected variant-major.*plink --bfile a --make-bed"),
        (lambda bed: bed.write_bytes(b"\x6c\x1b\x02" + bytes(60)), "third byte of a.bed is 0x02, expected 0x01"),
        (lambda bed: bed.write_bytes(bed.read_bytes()[:-1]), "has 62 bytes, expected 63 .*is truncated"),
        (lambda bed: bed.write_bytes(bed.read_bytes() + b"\0"), "has 64 bytes, expected 63 .*belongs to other .bim and .fam"),
        (lambda bed: bed.with_suffix(".fam").unlink(), "has no .fam file next to it, expected a.fam"),
        (lambda bed: bed.with_suffix(".bim").unlink(), "has no .bim file next to it, expected a.bim"),
        (lambda bed: change(bed.with_suffix(".bim"), "1003", "3.5"), "line 4 of a.bim: the position is '3.5', expected a whole number"),
        (lambda bed: change(bed.with_suffix(".bim"), "0.375", "X"), "line 4 of a.bim: the genetic position is 'X', expected a number"),
        (lambda bed: change(bed.with_suffix(".bim"), "1003\tC\tT", "1003\tC"), "line 4 of a.bim has fewer fields.*expected 6"),
        (lambda bed: change(bed.with_suffix(".bim"), "1003\tC\tT", "1003\tC\tT\tG"), "a.bim cannot be read as a list of variants"),
        (lambda bed: change(bed.with_suffix(".fam"), " 0 0 0 -9", ""), "a.fam has 2 columns, expected 6"),
        (lambda bed: bed.with_suffix(".fam").write_bytes(b"\xff\xfe f 0 0 0 0"), "a.fam cannot be read as a list of individuals"),
        (lambda bed: bed.with_suffix(".fam").write_bytes(b""), "a.fam cannot be read as a list of individuals"),
    ],
)
def test_invalid_files_are_refused(damage: Any, message: str, tmp_path: Path) -> None:
    bed = write_bed(tmp_path / "a.bed", draw(0, 10, 20))
    damage(bed)
    with pytest.raises(dfact.DfactError, match=message):
        dfact.import_genotypes(bed, tmp_path / "a.zarr")
    assert not (tmp_path / "a.zarr").exists()


def test_other_formats_are_refused_by_name(tmp_path: Path) -> None:
    bed = write_bed(tmp_path / "a.bed", draw(0, 10, 20))
    with pytest.raises(dfact.ParameterError, match=r"a.bed has the format PLINK, expected a table; use dfact import"):
        dfact.import_table(bed, tmp_path / "a.zarr")
    (tmp_path / "a.csv").write_text("a\n1\n")
    with pytest.raises(dfact.ParameterError, match=r"a.csv has the format .*, expected genotypes; use dfact import"):
        dfact.import_genotypes(tmp_path / "a.csv", tmp_path / "a.zarr")
    with pytest.raises(dfact.DataError, match="is a folder without files of genotypes"):
        dfact.import_genotypes(tmp_path, tmp_path / "a.zarr")


# ---------------------------------------------------------------- PLINK 2 and VCF Zarr


@pytest.mark.further
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["pgen", "vcf 2", "vcf 3", "vcf", "vcf.gz"])
def test_every_format_gives_the_same_dataset(kind: str, seed: int, tmp_path: Path) -> None:
    G = draw(seed, 30, 50)
    expected = dfact.import_genotypes(write_bed(tmp_path / "a.bed", G), tmp_path / "a.zarr")
    alleles = np.array([["T", "C"]] * 50)
    if kind == "pgen":
        source = write_pgen(tmp_path / "b.pgen", G)
    elif kind.startswith("vcf "):
        source = write_vcf_zarr(tmp_path / "b.vcz", to_calls(G), alleles, int(kind.split()[1]))
    else:
        source = write_vcf(tmp_path / f"b.{kind}", to_calls(G))
    found = dfact.import_genotypes(source, tmp_path / "b.zarr")
    assert found.fingerprint == expected.fingerprint
    assert expected.genotypes.variants is not None
    assert found.genotypes.variants is not None
    columns = list(expected.genotypes.variants) if kind == "pgen" else ["chromosome", "name", "position", "A1", "A2", "frequency"]
    pd.testing.assert_frame_equal(found.genotypes.variants[columns], expected.genotypes.variants[columns])


@pytest.mark.parametrize("kind", ["pgen", "vcf"])
def test_variants_with_more_alleles_are_refused_or_dropped(kind: str, tmp_path: Path) -> None:
    G = draw(0, 12, 9, missing=0.0)
    calls = to_calls(G)
    calls[4, :, 1] = 2
    if kind == "pgen":
        alts = ["C" if j != 4 else "C,G" for j in range(9)]
        source = write_pgen(tmp_path / "a.pgen", G, alts, calls.reshape(9, -1).astype(np.int32))
    else:
        alleles = np.array([["T", "C", "G" if j == 4 else ""] for j in range(9)])
        source = write_vcf_zarr(tmp_path / "a.vcz", calls, alleles, 3)
    with pytest.raises(dfact.DataError, match=r"1 variant\(s\) with more than two alleles \(it is 2:1004 'rs4' T>C"):
        dfact.import_genotypes(source, tmp_path / "a.zarr")
    dataset = dfact.import_genotypes(source, tmp_path / "a.zarr", multiallelic="drop")
    assert np.array_equal(dataset.source.read(0, 12), np.delete(G, 4, axis=1))
    assert dataset.genotypes.dropped_variants == 1


def test_invalid_vcf_zarr_is_refused(tmp_path: Path) -> None:
    G, alleles = draw(0, 6, 5, missing=0.0), np.array([["T", "C"]] * 5)
    calls = to_calls(G)
    calls[2, 3] = 0, -2
    haploid = write_vcf_zarr(tmp_path / "haploid.vcz", calls, alleles, 3)
    with pytest.raises(dfact.DataError, match=r"1 variant\(s\) with haploid calls \(it is 2:1002 'rs2' T>C, individual 'p3'\)"):
        dfact.import_genotypes(haploid, tmp_path / "a.zarr")
    calls[2, 3] = 0, 3
    with pytest.raises(dfact.DataError, match="'rs2' has an allele of 'p3' that its list of alleles lacks"):
        dfact.import_genotypes(write_vcf_zarr(tmp_path / "third.vcz", calls, alleles, 2), tmp_path / "a.zarr")
    triploid = np.concatenate([to_calls(G), to_calls(G)[:, :, :1]], axis=2)
    with pytest.raises(
        dfact.DataError, match=r"5 variant\(s\) with calls of more than two alleles \(first 1:1000 'rs0' T>C, individual 'p0'\)"
    ):
        dfact.import_genotypes(write_vcf_zarr(tmp_path / "triploid.vcz", triploid, alleles, 3), tmp_path / "a.zarr")
    document = tmp_path / "third.vcz" / "variant_contig" / ".zarray"
    document.write_text(json.dumps(json.loads(document.read_text()) | {"chunks": [0]}))
    # Zarr from 3.4 on reports it itself.
    with pytest.raises((dfact.DataError, dfact.StoreError), match=r"variant_contig' has chunks of \(0,\), expected|shape \[0\] is invalid"):
        dfact.import_genotypes(tmp_path / "third.vcz", tmp_path / "a.zarr")
    shutil.rmtree(haploid / "variant_allele")
    with pytest.raises(dfact.DataError, match=r"haploid.vcz lacks the array 'variant_allele', expected a VCF Zarr store"):
        dfact.import_genotypes(haploid, tmp_path / "a.zarr")
    (tmp_path / "no.vcz").mkdir()
    (tmp_path / "no.vcz" / "zarr.json").write_text("{")
    with pytest.raises(dfact.StoreError, match=r"cannot read .*no.vcz"):
        dfact.import_genotypes(tmp_path / "no.vcz", tmp_path / "a.zarr")


@pytest.mark.parametrize(
    ("name", "member", "message"),
    [
        ("sample_id", "compressor", "the array '/sample_id' holds pickles, which run code"),
        ("call_genotype", "compressor", r"cannot read .*a\.vcz"),  # refused by Zarr
        ("variant_position", "filters", r"cannot read .*a\.vcz"),
    ],
)
def test_pickles_in_a_store_are_never_loaded(name: str, member: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = write_vcf_zarr(tmp_path / "a.vcz", to_calls(draw(0, 6, 5)), np.array([["T", "C"]] * 5), 2)
    path = store / name / ".zarray"
    metadata = json.loads(path.read_text())
    codec = {"id": Pickle.codec_id, "protocol": 5}
    metadata[member] = [codec] if member == "filters" else codec
    path.write_text(json.dumps(metadata))
    monkeypatch.setattr(Pickle, "decode", lambda *_: pytest.fail("a pickle was loaded"))
    with pytest.raises(dfact.DfactError, match=message):
        dfact.import_genotypes(store, tmp_path / "a.zarr")


# ---------------------------------------------------------------- populations


def test_populations(tmp_path: Path) -> None:
    G = draw(0, 4, 6)
    fam = [f"{'red' if i < 3 else 'blue'} p{i} 0 0 0 {1 + i % 2}" for i in range(4)]
    bed = write_bed(tmp_path / "a.bed", G, None, fam)
    plain = dfact.import_genotypes(bed, tmp_path / "plain.zarr")
    assert plain.genotypes.population is None
    texts = {
        "panel.tsv": "sample\tsuper\tpop\np2\tX\tYRI\np0\tX\tCEU\np1\tX\t-\np3\tX\t\nother\tX\tCEU\n",
        "ids.csv": "ancestry,number,sample\nCEU,1,p0\nYRI,2,p2\n-,3,p1\n-,4,p3\n",
        "two.csv": "who,where\np0,CEU\np2,YRI\np1,-\np3,-\n",
        "a.pop": "CEU\n-\n YRI\n-\n",
        "a.labels": "CEU\n-\nYRI\n-\n",
        "a.ind": "p2 F YRI\np0 M CEU\np1 M -\np3 F -\n",
        "a.clst": "IID pop\np2 YRI\np0 CEU\np1 -\np3 -\n",
        "a.psam": "#FID\tIID\tSEX\tSuperPop\nf\tp0\t1\tCEU\nf\tp1\t1\t-\nf\tp2\t1\tYRI\nf\tp3\t1\t-\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    named = ["CEU", None, "YRI", None]
    cases: list[tuple[dict[str, Any], list[Any], str]] = [
        ({}, named, ""),  # the .pop file next to it
        ({"population": "a.pop"}, named, ""),
        ({"population": "a.labels"}, named, ""),
        ({"population": "a.fam"}, ["red", "red", "red", "blue"], "the column 'family' of a.fam, by the ids in 'person'"),
        ({"population": "a.fam", "population_column": "phenotype"}, ["1", "2", "1", "2"], "the column 'phenotype' of a.fam"),
        ({"population": "a.psam"}, named, "the column 'SuperPop' of a.psam, by the ids in 'IID'"),
        ({"population": "panel.tsv"}, named, "the column 'pop' of panel.tsv, by the ids in 'sample'"),
        ({"population": "panel.tsv", "population_column": "super", "id_column": "sample"}, ["X"] * 4, "the column 'super'"),
        ({"population": "ids.csv"}, named, "the column 'ancestry' of ids.csv, by the ids in 'sample'"),
        ({"population": "two.csv"}, named, "the column 'where' of two.csv, by the ids in 'who'"),
        ({"population": "a.ind", "population_column": "3"}, named, "the column '3' of a.ind, by the ids in '1'"),
        ({"population": "a.clst"}, named, "the column 'pop' of a.clst, by the ids in 'IID'"),
        ({"population": ["b", "-", "a", "b"]}, ["b", None, "a", "b"], ""),
    ]
    for i, (options, expected, said) in enumerate(cases):
        path, notes = options.get("population"), list[str]()
        located = options | ({"population": tmp_path / path} if isinstance(path, str) else {})
        dataset = dfact.import_genotypes(bed, tmp_path / f"{i}.zarr", **located, note=notes.append)
        assert isinstance(dataset.genotypes.population, pd.Categorical)
        assert [None if value != value else value for value in dataset.genotypes.population] == expected
        assert said in "".join(notes)
        assert dataset.fingerprint != plain.fingerprint
        assert dataset.confounders is None
    for options, message in (
        ({"population": tmp_path / "panel.tsv", "population_column": "none"}, "population_column is 'none', expected one of the columns"),
        ({"population": ["a"]}, "population has 1 populations, expected 4"),
        ({"population": tmp_path / "panel.tsv", "id_column": "super"}, "holds the individual 'X' twice"),
        ({"population": tmp_path / "panel.tsv", "id_column": "pop", "population_column": "sample"}, "holds the individual 'CEU' twice"),
        ({"population": tmp_path / "a.ind"}, r"a.ind has the columns 2 \(2 values, such as 'F'\), 3 .*--population-column"),
    ):
        with pytest.raises(dfact.DfactError, match=message):
            dfact.import_genotypes(bed, tmp_path / "no.zarr", **options)
    write_bed(bed, G, None, [f"p{i} p{i} 0 0 0 {1 + i % 2}" for i in range(4)])
    with pytest.raises(dfact.ParameterError, match=r"a.fam has the columns family \(4 values.* phenotype \(2 values.*--population-column"):
        dfact.import_genotypes(bed, tmp_path / "no.zarr", population=tmp_path / "a.fam")
    (tmp_path / "others.csv").write_text("id,pop\nq1,CEU\n")
    with pytest.raises(dfact.DataError, match=r"others.csv names no population of the individuals of a.bed, such as 'p0'; check id_column"):
        dfact.import_genotypes(bed, tmp_path / "no.zarr", population=tmp_path / "others.csv")
    (tmp_path / "some.csv").write_text("id,pop\np1,CEU\nq7,CEU\np0,-\n")
    with pytest.warns(
        UserWarning, match="some.csv lacks 2 of 4 individuals of a.bed.*: p2, p3; 1 of its rows are of other individuals: q7; compare"
    ):
        dfact.import_genotypes(bed, tmp_path / "some.zarr", population=tmp_path / "some.csv")
    (tmp_path / "a.pop").unlink()
    with pytest.raises(dfact.ParameterError, match="population_column is 'pop' and population is None"):
        dfact.import_genotypes(bed, tmp_path / "no.zarr", population_column="pop")


# ---------------------------------------------------------------- the command


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    G = draw(0, 8, 20)
    G[:, 3] = 9
    bed = write_bed(tmp_path / "a.bed", G)
    (tmp_path / "people.csv").write_text("id,pop\n" + "".join(f"p{i},{'AB'[i % 2] if i < 6 else '-'}\n" for i in range(8)))
    options = ["--empty-variants", "drop", "--population", str(tmp_path / "people.csv"), "--n-readers", "1", "--memory-limit", "1GiB"]
    assert main(["import", str(bed), str(tmp_path / "a.zarr"), *options]) == 0
    printed = capsys.readouterr().out
    assert "dropped 1 variant(s) with no genotype of any individual (it is 1:1003 'rs3' T>C)" in printed
    assert "on 3 chromosome(s) (1, 2, 3); 1 dropped; genotypes count A2 (T of rs0), not A1 (C)" in printed
    assert "populations: the column 'pop' of people.csv, by the ids in 'id'" in printed
    assert "A (3), B (3), 2 unknown" in printed
    (tmp_path / "t.csv").write_text("id,pop\n" + "".join(f"p{i},{'AB'[i % 2]}\n" for i in range(6)))
    assert (
        main(
            [
                "import",
                str(tmp_path / "t.csv"),
                str(tmp_path / "t.zarr"),
                "--items",
                "pop",
                "--levels",
                "A<B",
                "--memory-limit",
                "1GiB",
            ]
        )
        == 0
    )
    assert main(["import", str(bed), str(tmp_path / "b.zarr"), "--items", "rs*"]) == 2
    assert "--items applies to tables, and SOURCE is a file of genotypes; leave it out." in capsys.readouterr().err
    assert main(["import", str(tmp_path / "people.csv"), str(tmp_path / "b.zarr"), "--multiallelic", "drop"]) == 2
    assert "--multiallelic applies to genotypes, and SOURCE is a file of tables; leave it out." in capsys.readouterr().err


def test_layout_of_many_columns() -> None:
    """Blocks of 64 rows with all columns, and as many partitions: enough for hundreds of workers."""
    for shape in ((500_000, 800_000), (2000, 1_000_000), (100_000, 100_000)):
        layout = Layout.of(shape)
        assert layout.chunk_rows == layout.partition_rows == layout.block_rows == 64
        assert layout.n_partitions == -(-shape[0] // 64)


# ---------------------------------------------------------------- public files


@pytest.fixture
def genotypes() -> Path:
    """Folder of the public files; skips where it is missing."""
    folder = REAL_DATA / "genotypes"
    if not folder.is_dir():
        pytest.skip("the public genotypes are not next to the project")
    return folder


def unpack_files(folder: Path, stem: str, target: Path) -> Path:
    for file in folder.glob(f"{stem}.*"):
        content = file.read_bytes()
        name = file.name.removesuffix(".gz")
        (target / name).write_bytes(gzip.decompress(content) if name != file.name else content)
    return target / f"{stem}.bed"


@pytest.mark.further
@pytest.mark.parametrize(
    ("stem", "shape", "missing", "monomorphic"),
    [("hapmap3/hapmap3", (324, 13928), 0.00264, 169), ("scope/example_1k", (1000, 1000), 0, 4), ("demo/demo_data", (105, 8451), 0, 473)],
)
def test_public_files(stem: str, shape: tuple[int, int], missing: float, monomorphic: int, genotypes: Path, tmp_path: Path) -> None:
    folder, name = stem.split("/")
    dataset = dfact.import_genotypes(unpack_files(genotypes / folder, name, tmp_path), tmp_path / "a.zarr", chromosomes="all")
    assert dataset.shape == shape
    assert dataset.missing_rate == pytest.approx(missing, abs=5e-6)
    assert (dataset.statistics.minimum == dataset.statistics.maximum).sum() == monomorphic
    if folder == "demo":
        pytest.importorskip("pgenlib")
        again = dfact.import_genotypes(tmp_path / "demo_data.pgen", tmp_path / "b.zarr", chromosomes="all")
        assert again.fingerprint == dataset.fingerprint


def test_public_files_that_are_damaged_are_refused(genotypes: Path, tmp_path: Path) -> None:
    edge = genotypes / "edge"
    for file in edge.iterdir():
        shutil.copyfile(file, tmp_path / file.name)
    messages = {
        "badfile": "it begins with b'This'",
        "empty": "its content is empty",
        "small_too_short": "has 6 bytes, expected 7 for the 3 individuals of the .fam file and 4 variants of the .bim file",
        "smallmodebad": "third byte of smallmodebad.bed is 0x30, expected 0x01",
        "smallmode0": "is person-major .*expected variant-major",
    }
    for stem, message in messages.items():
        for suffix in ("bim", "fam"):
            if not (tmp_path / f"{stem}.{suffix}").exists():
                shutil.copyfile(edge / f"small.{suffix}", tmp_path / f"{stem}.{suffix}")
        with pytest.raises(dfact.DataError, match=message):
            dfact.import_genotypes(tmp_path / f"{stem}.bed", tmp_path / "no.zarr")
    rates = {"some_missing": 0.2182, "plink_sim_10s_100v_10pmiss": 0.111, "sparse": 0.0, "small": 1 / 6}
    for stem, rate in rates.items():
        dataset = dfact.import_genotypes(tmp_path / f"{stem}.bed", tmp_path / f"{stem}.zarr", chromosomes="all")
        assert dataset.missing_rate == pytest.approx(rate)
    shutil.copyfile(edge / "small.bim_bad_positions.bim", tmp_path / "small.bim")
    with pytest.raises(dfact.DataError, match=r"line 2 of small.bim: the genetic position is 'X', expected a number"):
        dfact.import_genotypes(tmp_path / "small.bed", tmp_path / "no.zarr")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"contig_id": (1 << 40, 2)}, "expected at most 4096 and 4194304"),
        ({"contig_id": (1 << 20, 2)}, "'contig_id' has 524288 chunks of .2,., expected at most 131072"),
        ({"variant_id": (7, 7)}, "the arrays of the variants differ in length, expected 5"),
    ],
)
def test_damaged_shape_is_refused_before_its_chunks_are_read(tmp_path: Path, change: dict[str, tuple[int, int]], match: str) -> None:
    path = write_vcf_zarr(tmp_path / "a.vcz", to_calls(draw(0, 4, 5)), np.array([["T", "C"]] * 5), 3)
    for name, (length, chunk) in change.items():
        file = path / name / "zarr.json"
        document = json.loads(file.read_text())
        document["shape"], document["chunk_grid"]["configuration"]["chunk_shape"] = [length], [chunk]
        file.write_text(json.dumps(document))
    with pytest.raises(dfact.DataError, match=match):
        dfact.import_genotypes(path, tmp_path / "a.zarr")


def test_a_file_in_place_of_a_dataset_is_to_be_imported(tmp_path: Path) -> None:
    (tmp_path / "t.bed").write_bytes(b"x")
    with pytest.raises(dfact.StoreError, match=r"t.bed is a file, expected a dataset; import it: dfact import .*t.bed t.zarr$"):
        dfact.open_dataset(tmp_path / "t.bed")
