"""VCF files: which variants an import takes, one message for all invalid ones, and damaged files."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dfact
from dfact.cli.main import main
from dfact.genetics import vcf
from tests.genetics.test_genotypes import draw, to_calls, write_bed, write_vcf, write_vcf_zarr

COLUMNS = "#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT\tAda\tBen\tEve\n"
LINES = """\
chr1 100 ok A G PASS 0/0 0|1 1/1
chr1 110 half A G PASS ./1 1/. 0/1
chr1 120 haploid A G PASS 0/1 . 1
chr1 130 triploid A G PASS 0/1 0/0/1 1/1
chr1 140 low A G LowQ 0/0 0/1 1/1
chr1 150 . A G . 0/0 0/1 1/1
chr1 150 . A T . 0/1 0/1 1/1
chr1 160 twice A G PASS 0/0 0/1 1/1
chr1 160 twice A G PASS 1/1 0/1 0/0
chr1 170 three A C,G PASS 0/2 0/1 1/2
chr1 180 indel AT A PASS 0/0 0/1 1/1
chr1 190 star A * PASS 0/0 0/1 1/1
chr2 195 deletion A <DEL> PASS 0/0 0/1 1/1
chr2 200 same A . PASS 0/0 0/0 0/0
chr2 210 empty A G PASS ./. . ./.
chrX 10 x A G PASS 0/1 1 0
chrM 20 m A G PASS 1 1 0
"""
KINDS = {
    "1 variant(s) with more than two alleles (it is chr1:170 'three' A>C,G)",
    "2 variant(s) with a symbolic allele, such as * or <DEL> (first chr1:190 'star' A>*)",
    "1 variant(s) with haploid calls (it is chr1:120 'haploid' A>G, individual 'Eve')",
    "1 variant(s) with calls of more than two alleles (it is chr1:130 'triploid' A>G, individual 'Ben')",
    "1 variant(s) with no genotype of any individual (it is chr2:210 'empty' A>G)",
    "2 variant(s) with the name, position and alleles of others (first chr1:160 'twice' A>G)",
}


def write(path: Path, lines: str = LINES) -> Path:
    text = "##fileformat=VCFv4.2\n" + COLUMNS
    for line in lines.splitlines():
        chromosome, position, name, reference, other, passed, *calls = line.split()
        text += "\t".join([chromosome, position, name, reference, other, ".", passed, ".", "GT", *calls]) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["a.vcf", "a.vcf.gz"])
def test_one_message_names_all_invalid_variants(name: str, tmp_path: Path) -> None:
    source, notes = write(tmp_path / name), list[str]()
    with pytest.raises(dfact.DataError, match=r"8 of 14 variants are invalid, expected none: .*\(--drop-invalid\)") as error:
        dfact.import_genotypes(source, tmp_path / "a.zarr")
    assert all(kind in str(error.value) for kind in KINDS)
    dataset = dfact.import_genotypes(source, tmp_path / "a.zarr", drop_invalid=True, note=notes.append)
    assert {note.removeprefix("dropped ") for note in notes if note.startswith("dropped")} == KINDS
    assert "left out 2 variant(s) of chrX, chrM, which are not autosomes; --chromosomes all takes them" in notes
    assert "left out 1 variant(s) that fail a filter of the file; --keep-failing takes them" in notes
    assert list(dataset.column_labels) == ["ok", "half", "chr1:150:G:A", "chr1:150:T:A", "indel", "same"]
    assert dataset.source.read(0, 3).T.tolist() == [[2, 1, 0], [9, 9, 1], [2, 1, 0], [1, 1, 0], [2, 1, 0], [2, 2, 2]]
    assert list(dataset.row_labels) == ["Ada", "Ben", "Eve"]
    assert dataset.genotypes.dropped_variants == 11


def test_filters_and_chromosomes_are_chosen(tmp_path: Path) -> None:
    source = write(tmp_path / "a.vcf")

    def labels(**options: Any) -> list[str]:
        return [*dfact.import_genotypes(source, tmp_path / "a.zarr", drop_invalid=True, overwrite=True, **options).column_labels]

    assert "low" in labels(keep_failing=True)
    assert labels(chromosomes="2") == ["same"]
    assert labels(chromosomes=["chr2"]) == ["same"]
    assert labels(chromosomes="2-22") == ["same"]
    source.write_text("".join(line for line in source.read_text().splitlines(keepends=True) if not line.startswith("chrX")))
    with pytest.raises(dfact.ParameterError, match=r"chromosomes is '7,X' and a.vcf has chr1, chr2, chrM, expected some of these"):
        labels(chromosomes="7,X")
    with pytest.raises(dfact.DataError, match=r"1 of 1 variants are invalid.* haploid calls .it is chrM:20 'm' A>G, individual 'Ada'"):
        dfact.import_genotypes(source, tmp_path / "b.zarr", chromosomes="MT")
    with pytest.raises(dfact.DataError, match="has variants of chrX alone, expected autosomes; name the chromosomes: --chromosomes all"):
        dfact.import_genotypes(write(tmp_path / "x.vcf", "chrX 10 x A G PASS 0/1 1/1 0/0"), tmp_path / "b.zarr")


def test_sex_chromosomes_of_plink_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bed = write_bed(tmp_path / "a.bed", draw(0, 8, 5))
    lines = [f"{name}\trs{j}\t0\t{j + 1}\tC\tT\n" for j, name in enumerate(("1", "23", "24", "26", "22"))]
    bed.with_suffix(".bim").write_text("".join(lines))
    assert main(["import", str(bed), str(tmp_path / "a.zarr")]) == 0
    assert "left out 3 variant(s) of 23, 24, 26, which are not autosomes" in capsys.readouterr().out
    assert list(dfact.open_dataset(tmp_path / "a.zarr").column_labels) == ["rs0", "rs4"]
    assert main(["import", str(bed), str(tmp_path / "b.zarr"), "--chromosomes", "1-22,X"]) == 0
    assert list(dfact.open_dataset(tmp_path / "b.zarr").column_labels) == ["rs0", "rs1", "rs4"]
    assert main(["import", str(bed), str(tmp_path / "c.zarr"), "--chromosomes", "all"]) == 0
    assert dfact.open_dataset(tmp_path / "c.zarr").shape == (8, 5)


def test_filters_of_a_zarr_store_are_followed(tmp_path: Path) -> None:
    import zarr

    G = draw(0, 6, 5)
    store = write_vcf_zarr(tmp_path / "a.vcz", to_calls(G), np.array([["T", "C"]] * 5), 3)
    group = zarr.open_group(store)
    applied = np.array([[True, False], [False, False], [False, True], [True, False], [False, True]])
    group.create_array("variant_filter", data=applied)
    names = group.create_array("filter_id", shape=(2,), dtype="string")
    names[...] = np.array(["PASS", "LowQ"], object)
    dataset = dfact.import_genotypes(store, tmp_path / "a.zarr")
    np.testing.assert_array_equal(dataset.source.read(0, 6), G[:, [0, 1, 3]])


def test_blocks_of_any_size_give_the_same_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_vcf(tmp_path / "a.vcf.gz", to_calls(draw(1, 13, 40)))
    expected = dfact.import_genotypes(source, tmp_path / "a.zarr")
    for size in (7, 300, 1000):
        monkeypatch.setattr(vcf, "_READ_BYTES", size)
        assert dfact.import_genotypes(source, tmp_path / f"{size}.zarr").fingerprint == expected.fingerprint


def _replaced(old: str, new: str) -> Any:
    return lambda text: text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_replaced("#CHROM", "CHROM"), "line 2 of a.vcf begins with b'CHROM.*expected the line #CHROM before it"),
        (_replaced("\tAda\tBen\tEve", ""), "expected CHROM, POS, .* and a column for each individual"),
        (_replaced("Ben", "Ada"), "holds the individual 'Ada' twice"),
        (_replaced("0/0\t0|1\t1/1", "0/0\t0|1"), "line 3 of a.vcf does not have 3 calls, one for each individual"),
        (_replaced("0/0\t0|1\t1/1", "0/0\t0|1\t1/1\t0/0"), "line 3 of a.vcf does not have 3 calls"),
        (_replaced("0/0\t0|1\t1/1", "0/0\t0|3\t1/1"), "chr1:100 has a call of 'Ben' with an allele that is not listed"),
        (_replaced("0/0\t0|1\t1/1", "0/0\tNA/1\t1/1"), "chr1:100 has a call of 'Ben' with an allele that is not listed"),
        (_replaced("\tGT\t", "\tDS\t"), "line 3 of a.vcf has the FORMAT 'DS', expected GT first"),
        (_replaced("chr1\t100", "chr1\tX"), "variant 1 of a.vcf: the position is 'X', expected a whole number"),
        (lambda text: text[: text.index("chr1")], "a.vcf has no variants"),
        (lambda _: "##fileformat=VCFv4.2\n##x\n", "a.vcf has no line #CHROM"),
        (lambda _: "chr1\t1\n", "does not have the format VCF"),
    ],
)
def test_damaged_files_are_refused(damage: Any, message: str, tmp_path: Path) -> None:
    source = write(tmp_path / "a.vcf", LINES.splitlines()[0])
    source.write_text(damage(source.read_text()))
    with pytest.raises(dfact.DataError, match=message):
        dfact.import_genotypes(source, tmp_path / "a.zarr")
    assert not (tmp_path / "a.zarr").exists()


def test_a_truncated_archive_is_refused(tmp_path: Path) -> None:
    source = write_vcf(tmp_path / "a.vcf.gz", to_calls(draw(1, 13, 40)))
    source.write_bytes(source.read_bytes()[:-20])
    with pytest.raises(dfact.DataError, match=r"a.vcf.gz cannot be read as VCF: .*the file is damaged"):
        dfact.import_genotypes(source, tmp_path / "a.zarr")


def test_bcf_names_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.bcf").write_bytes(b"BCF\2")
    assert main(["import", str(tmp_path / "a.bcf"), str(tmp_path / "a.zarr")]) == 1
    assert "bcftools view a.bcf -Oz -o a.vcf.gz, then dfact import a.vcf.gz a.zarr" in capsys.readouterr().err


# Files of twelve samples with every kind of variant that a reader may meet, and a table of populations with another person

TRICKY = """\
chr1 100 ok A G PASS 0/0 0/1 1/1 0|1 1|0 1|1 ./. .|. 0/1 0/0 1/1 0/1
chr1 110 halfcall A G PASS ./1 1/. ./0 0/. 1|0 1|1 ./. .|. 0/1 0/0 1/1 0/1
chr1 120 haploid A G PASS 0 1 . 0|1 1|0 1|1 ./. .|. 0/1 0/0 1/1 0/1
chr1 130 triploid A G PASS 0/0/1 1/1/1 1/1 0|1 1|0 1|1 ./. .|. 0/1 0/0 1/1 0/1
chr1 140 lowq A G LowQ 0/0 0/1 1/1 0|1 1|0 1|1 ./. .|. 0/1 0/0 1/1 0/1
chr1 150 . A G PASS 0/0 0/1 1/1 0|1 1|0 1|1 ./. .|. 0/1 0/0 1/1 0/1
chr1 150 . A T PASS 0/0 0/1 1/1 0|1 1|0 1|1 ./. .|. 0/1 0/0 1/1 0/1
chr1 160 dup A G PASS 0/0 0/1 1/1 0|1 1|0 1|1 ./. .|. 0/1 0/0 1/1 0/1
chr1 160 dup A G PASS 0/1 1/1 0/0 0/1 .|. ./. 1|1 1|0 0|1 1/1 0/1 0/0
chr1 170 dup C G PASS 0/0 0/1 1/1 0|1 1|0 1|1 ./. .|. 0/1 0/0 1/1 0/1
chr1 180 indel AT A PASS 0/0 0/1 1/1 0|1 1|0 1|1 ./. .|. 0/1 0/0 1/1 0/1
chr1 185 star A * PASS 0/0 0/1 1/1 0|1 1|0 1|1 ./. .|. 0/1 0/0 1/1 0/1
chr1 190 del A <DEL> PASS 0/0 0/1 1/1 0|1 1|0 1|1 ./. .|. 0/1 0/0 1/1 0/1
chr1 200 mono A G PASS 0/0 0/0 0/0 0/0 0/0 0/0 0/0 0/0 0/0 0/0 0/0 0/0
chr1 205 noalt A . PASS 0/0 0/0 0/0 0/0 0/0 0/0 0/0 0/0 0/0 0/0 0/0 0/0
chr2 10 sing A G PASS 0/1 0/0 0/0 0/0 0/0 0/0 0/0 0/0 0/0 0/0 0/0 0/0
chrX 10 x1 A G PASS 0/1 1/1 0 1 0 1 0/1 0/1 0/1 0/1 0/1 0/1
chrY 10 y1 A G PASS . . 0 1 0 1 . . . . . .
chrM 10 m1 A G PASS 0 1 0 1 0 1 0 1 0 1 0 1
"""
SEVERAL = """\
chr1 100 ok A G PASS 0/0 0/1 1/1 0|1 1|0 1|1 ./. .|. 0/1 0/0 1/1 0/1
chr1 300 multi A C,G PASS 0/1 0/2 1/2 2/2 1|0 1|1 ./. .|. 0/1 0/0 1/1 0/1
chr1 310 allmiss A G PASS ./. ./. ./. ./. ./. ./. ./. ./. ./. ./. ./. ./.
"""
POPULATIONS = "IID\tpop\tsex\nS0\tA\t1\nS1\tA\t2\nS2\tB\t1\nT9\tB\t2\n"


@pytest.mark.filterwarnings("default:pops.tsv lacks")
@pytest.mark.parametrize(
    ("lines", "refused", "kept"),
    [
        (
            TRICKY,
            "6 of 15 variants are invalid",
            "ok halfcall chr1:150:G:A chr1:150:T:A dup indel mono noalt sing",
        ),
        (SEVERAL, "2 of 3 variants are invalid", "ok"),
    ],
    ids=["tricky", "several"],
)
def test_every_kind_of_variant_of_twelve_samples(
    lines: str, refused: str, kept: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = "".join(f"\tS{i}" for i in range(12))
    source, text = tmp_path / "a.vcf", "##fileformat=VCFv4.2\n" + COLUMNS.replace("\tAda\tBen\tEve", samples)
    for line in lines.splitlines():
        chromosome, position, name, reference, other, passed, *calls = line.split()
        text += "\t".join([chromosome, position, name, reference, other, ".", passed, ".", "GT", *calls]) + "\n"
    source.write_text(text)
    (tmp_path / "pops.tsv").write_text(POPULATIONS)
    command = ["import", str(source), str(tmp_path / "a.zarr"), "--population", str(tmp_path / "pops.tsv")]
    assert main(command) == 1
    assert refused in (error := capsys.readouterr().err)
    assert "--drop-invalid" in error
    assert main([*command, "--drop-invalid"]) == 0
    said = capsys.readouterr()
    lacking = "lacks 9 of 12 individuals of a.vcf, whose populations are unknown: S3, S4, S5, …; 1 of its rows are of other individuals: T9"
    assert lacking in said.err
    assert "the column 'pop' of pops.tsv, by the ids in 'IID'" in said.out + said.err
    dataset = dfact.open_dataset(tmp_path / "a.zarr")
    assert [*dataset.column_labels] == kept.split()
    assert dataset.source.read(0, 12)[:, 0].tolist() == [2, 1, 0, 1, 1, 0, 9, 9, 1, 2, 0, 1]
    assert [*dataset.genotypes.population[:4]][:3] == ["A", "A", "B"]
