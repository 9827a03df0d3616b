"""Targets: files of genotypes."""

# ruff: noqa: ARG001  # every reader takes the same arguments
import random
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

import dfact
from benchmarks.fuzz.mutations import Mutation, mutate_any, mutate_bytes, mutate_file, mutate_store, mutate_text
from benchmarks.fuzz.target import M, N, Target, expect, read_values

_CODES = np.array([0, np.nan, 1, 2])


def genotypes() -> NDArray[np.int8]:
    """Return genotypes (N, M), −1 where missing."""
    rng = np.random.default_rng(5)
    return np.where(rng.random((N, M)) < 0.1, -1, rng.integers(0, 3, (N, M))).astype(np.int8)


def _write_tables(folder: Path) -> None:
    (folder / "c.bim").write_text("".join(f"{1 + j // 3}\trs{j}\t{j / 8}\t{1000 + j}\tC\tT\n" for j in range(M)))
    (folder / "c.fam").write_text("".join(f"f{i} p{i} 0 0 {1 + i % 2} -9\n" for i in range(N)))


def _import(source: Path, out: Path) -> dfact.Dataset:
    dataset = dfact.import_genotypes(source, out / "d.zarr", empty_variants="drop", multiallelic="drop", n_readers=1)
    values = read_values(dataset)
    expect(np.isin(values[~np.isnan(values)], (0, 1, 2)).all(), "values that are not genotypes")
    assert dataset.genotypes.variants is not None
    sizes = len(dataset.row_labels), len(dataset.column_labels), len(dataset.genotypes.variants)
    expect(sizes == (*values.shape, values.shape[1]), "inconsistent sizes")
    return dataset


def bed_target() -> Target:
    """Return a target of .bed files with their .bim and .fam, whose genotypes are decoded here once more."""

    def make(folder: Path) -> None:
        codes = np.array([0, 2, 3, 1], np.uint8)[genotypes().T]  # −1 takes the last one
        packed = sum(codes[:, i::4] << 2 * i for i in range(4))
        (folder / "c.bed").write_bytes(b"\x6c\x1b\x01" + np.asarray(packed, np.uint8).tobytes())
        _write_tables(folder)

    def read(folder: Path, out: Path, same: bool) -> None:
        dataset = _import(folder / "c.bed", out)
        fam, bim = ((folder / name).read_text().split("\n") for name in ("c.fam", "c.bim"))
        n, m = (sum(bool(line.strip()) for line in lines) for lines in (fam, bim))
        content = np.frombuffer((folder / "c.bed").read_bytes(), np.uint8)
        expect(content[:3].tobytes() == b"\x6c\x1b\x01" and content.size == 3 + m * (-(-n // 4)), "a file of another size is read")
        codes = (content[3:].reshape(m, -1, 1) >> np.arange(0, 8, 2, dtype=np.uint8)) & 3
        values = _CODES[codes.reshape(m, -1)[:, :n].T]
        kept = ~np.isnan(values).all(axis=0)
        np.testing.assert_array_equal(read_values(dataset), values[:, kept])
        assert dataset.genotypes.variants is not None
        lines = [line.split() for line in bim if line.strip()]
        names = [line[1] for line, keep in zip(lines, kept, strict=True) if keep]
        expect(dataset.genotypes.variants["name"].tolist() == names, "other variants")
        people = {line.split()[1] for line in fam if line.strip()}
        expect(all(label in people or label.split("_", 1)[1] in people for label in dataset.row_labels), "other people")

    return Target(make, _mutate_cohort("c.bed", "c.bim", "c.fam"), read)


def pgen_target() -> Target:
    """Return a target of .pgen files, whose format has no checksums: a mutated one may hold any genotypes."""

    def make(folder: Path) -> None:
        import pgenlib

        G = genotypes()
        with pgenlib.PgenWriter(str(folder / "c.pgen").encode(), N, variant_ct=M, nonref_flags=False) as writer:
            for column in G.T:
                writer.append_biallelic(np.where(column < 0, -9, 2 - column).astype(np.int8))
        (folder / "c.psam").write_text("#FID\tIID\tSEX\n" + "".join(f"f{i}\tp{i}\tNA\n" for i in range(N)))
        lines = [f"{1 + j // 3}\t{1000 + j}\trs{j}\tT\tC\t{j / 8}\n" for j in range(M)]
        (folder / "c.pvar").write_text("##source=test\n#CHROM\tPOS\tID\tREF\tALT\tCM\n" + "".join(lines))

    def read(folder: Path, out: Path, same: bool) -> None:
        _import(folder / "c.pgen", out)

    return Target(make, _mutate_cohort("c.pgen", "c.pvar", "c.psam"), read)


def vcf_zarr_target(zarr_format: Any) -> Target:
    """Return a target of VCF Zarr stores, which have no checksums, and whose lost chunks hold the fill value."""

    def make(folder: Path) -> None:
        G = genotypes().T
        calls = np.stack([G < 1, G < 2], axis=2).astype(np.int8)
        calls[G < 0] = -1
        arrays: dict[str, NDArray[Any]] = {
            "call_genotype": calls,
            "sample_id": np.array([f"p{i}" for i in range(N)]),
            "contig_id": np.array(["1", "2"]),
            "variant_contig": (np.arange(M) // 3).astype(np.int8),
            "variant_position": (1000 + np.arange(M)).astype(np.int32),
            "variant_id": np.array([f"rs{j}" for j in range(M)]),
            "variant_allele": np.array([["T", "C"]] * M),
        }
        group = zarr.create_group(folder / "c.vcz", zarr_format=zarr_format)
        for name, values in arrays.items():
            array = group.create_array(
                name, shape=values.shape, dtype="string" if values.dtype.kind == "U" else values.dtype, chunks=values.shape
            )
            array[...] = values.astype(object) if values.dtype.kind == "U" else values

    def read(folder: Path, out: Path, same: bool) -> None:
        _import(folder / "c.vcz", out)

    return Target(make, lambda folder, rng: mutate_store(folder / "c.vcz", rng), read)


def _mutate_cohort(binary: str, *tables: str) -> Mutation:
    """Return a mutation of the packed genotypes, or of a text file next to them, or of which files there are."""

    def mutate_table(data: bytes, rng: random.Random) -> bytes:
        return mutate_text(data, rng, "\t" if b"\t" in data else " ")

    def swap(folder: Path, rng: random.Random) -> bool:
        path = folder / rng.choice([binary, *tables])
        match rng.randrange(3):
            case 0:
                path.unlink()
            case 1:
                path.write_bytes(b"")
            case _:
                path.write_bytes((folder / rng.choice([binary, *tables])).read_bytes())
        return False

    files: list[Mutation] = [mutate_file(binary, mutate_bytes), *(mutate_file(name, mutate_table) for name in tables)]
    return mutate_any(*files, *files, swap)


GENOTYPE_TARGETS: dict[str, Target] = {
    "bed": bed_target(),
    "pgen": pgen_target(),
    "vcf zarr 2": vcf_zarr_target(2),
    "vcf zarr 3": vcf_zarr_target(3),
}
