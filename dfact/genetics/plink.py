"""PLINK: .bed files with their .bim and .fam, and hard calls of .pgen files with their .pvar and .psam."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.errors import DataError
from dfact.genetics.genotype_file import FAM_COLUMNS, GenotypeFile, pack, parse_numbers, person_labels, read_fields, sibling
from dfact.genetics.kernels import MISSING
from dfact.imports.readers.arrays.array_files import file_errors
from dfact.imports.readers.base import Format
from dfact.storage.input_files import InputFile

_BIM_COLUMNS = ("chromosome", "name", "cM", "position", "A1", "A2")
_PVAR_COLUMNS = {"CHROM": "chromosome", "ID": "name", "POS": "position", "ALT": "A1", "REF": "A2"}
_SIGNATURE = b"\x6c\x1b"
_HEADER_BYTES = 3
_PERSON_MAJOR, _VARIANT_MAJOR = 0, 1


class BedFile(GenotypeFile):
    """A .bed file: ⌈n/4⌉ bytes for each variant, after a header of 3 bytes."""

    def __init__(self, file: InputFile) -> None:
        self.file, self.name = file, file.name
        self._check_mode()
        self.labels, self.persons = _read_persons(sibling(file, (".fam",)))
        self.variants = _read_bim(sibling(file, (".bim",)))
        self._row_bytes = -(-len(self.labels) // 4)
        size, expected = file.signature()[0], _HEADER_BYTES + len(self.variants) * self._row_bytes
        if size != expected:
            counts = f"{len(self.labels)} individuals of the .fam file and {len(self.variants)} variants of the .bim file"
            said = "is truncated, or belongs to other files" if size < expected else "belongs to other .bim and .fam files"
            raise DataError(f"{self.name} has {size} bytes, expected {expected} for the {counts}; it {said}: export the three files again")

    def read_packed(self, start: int, stop: int) -> NDArray[np.uint8]:
        assert self.file is not None
        content = self.file.read_range(_HEADER_BYTES + start * self._row_bytes, _HEADER_BYTES + stop * self._row_bytes)
        if len(content) != (stop - start) * self._row_bytes:
            raise DataError(f"{self.name} has become shorter while it was read, expected a file that does not change; import it again")
        packed = np.frombuffer(content, np.uint8).reshape(stop - start, self._row_bytes)
        n = len(self.labels)
        further = np.flatnonzero(packed[:, -1] >> 2 * (n % 4)) if n % 4 else np.empty(0, np.intp)  # PLINK fills the last byte with zeros
        if further.size:
            found = f"variant {start + int(further[0]) + 1} of {self.name} has genotypes after the {n} individuals of the .fam file"
            raise DataError(f"{found}, expected none; it belongs to another .fam file: export the three files again")
        return packed

    def _check_mode(self) -> None:
        assert self.file is not None
        start = self.file.read_start(_HEADER_BYTES)
        if len(start) < _HEADER_BYTES:
            raise DataError(f"{self.name} has {len(start)} bytes, expected at least a header of {_HEADER_BYTES}; export it again")
        if start[2] == _PERSON_MAJOR:
            stem = self.name.removesuffix(".bed")
            remedy = f"convert it: plink --bfile {stem} --make-bed --out {stem}-variants"
            raise DataError(f"{self.name} is person-major (its third byte is 0x00), expected variant-major (0x01); {remedy}")
        if start[2] != _VARIANT_MAJOR:
            raise DataError(f"the third byte of {self.name} is {start[2]:#04x}, expected 0x01 (variant-major); export it again")


class PgenFile(GenotypeFile):
    """Hard calls of a .pgen file, read through pgenlib. As in a .bed file that PLINK makes of it, A1 is ALT and A2 is REF."""

    def __init__(self, file: InputFile) -> None:
        import pgenlib

        self.file, self.name = file, file.name
        self.labels, self.persons = _read_persons(sibling(file, (".psam", ".fam")))
        beside = sibling(file, (".pvar", ".pvar.zst", ".bim"))
        self.variants = _read_bim(beside) if beside is not None and beside.name.endswith(".bim") else _read_pvar(beside)
        self._failing = np.zeros(len(self.variants), np.bool_)
        if "FILTER" in self.variants:
            self._failing = ~self.variants.pop("FILTER").isin(("PASS", ".", "")).to_numpy(bool)
        alleles = 2 + self.variants["A1"].str.count(",").to_numpy(np.intp)
        self._multiallelic = alleles > 2
        offsets = np.concatenate([[0], np.cumsum(alleles)]).astype(np.uintp)
        with file_errors(self.name, "PLINK 2"):
            sizes = {"raw_sample_ct": len(self.labels), "variant_ct": len(self.variants)}
            more = {"allele_idx_offsets": offsets} if self._multiallelic.any() else {}
            self._reader: Any = pgenlib.PgenReader(str(file.keep_local()).encode(), **sizes, **more)

    @property
    def multiallelic(self) -> NDArray[np.bool_]:
        return self._multiallelic

    @property
    def failing(self) -> NDArray[np.bool_]:
        return self._failing

    def read_packed(self, start: int, stop: int) -> NDArray[np.uint8]:
        counts = np.empty((stop - start, len(self.labels)), np.int8)
        with file_errors(f"{self.name}, variants {start} to {stop},", "PLINK 2"):
            self._reader.read_range(start, stop, counts, allele_idx=0)
        counts[(counts < 0) | (counts > 2)] = MISSING
        return pack(counts)


def _read_persons(file: InputFile | None) -> tuple[NDArray[np.object_], NDArray[np.object_]]:
    """Return the labels and the ids of the individuals in a .fam or .psam file."""
    assert file is not None
    table = read_fields(file, FAM_COLUMNS, "a list of individuals").rename(columns={"FID": "family", "IID": "person"})
    if "person" not in table:
        raise DataError(f"{file.name} has the columns {', '.join(map(str, table))}, expected IID among them; export it again")
    persons = table["person"].to_numpy(object)
    if len(persons) and persons[0] == "IID":
        raise DataError(f"line 1 of {file.name} has the names of columns, expected an individual; begin it with '#', or remove it")
    families = table["family"].to_numpy(object) if "family" in table else None
    return person_labels(file.name, families, persons), persons


def _read_bim(file: InputFile | None) -> pd.DataFrame:
    assert file is not None
    table = read_fields(file, _BIM_COLUMNS, "a list of variants")
    numbers = {"cM": parse_numbers(file.name, table["cM"], "genetic position", whole=False)}
    return table.assign(**numbers, position=parse_numbers(file.name, table["position"], "position", whole=True))


def _read_pvar(file: InputFile | None) -> pd.DataFrame:
    assert file is not None
    table = read_fields(file, None, "a list of variants", (*_PVAR_COLUMNS, "CM", "FILTER"))
    lacking = [name for name in _PVAR_COLUMNS if name not in table]
    if lacking:
        raise DataError(f"{file.name} has the columns {', '.join(map(str, table))}, expected {', '.join(lacking)} too; export it again")
    further = [name for name in ("FILTER",) if name in table]
    kept = table[[*_PVAR_COLUMNS, *further]].rename(columns=_PVAR_COLUMNS)
    position = parse_numbers(file.name, kept["position"], "position", whole=True)
    distances = table["CM"] if "CM" in table else pd.Series(["0"] * len(table), dtype=object)
    return kept.assign(cM=parse_numbers(file.name, distances, "genetic position", whole=False), position=position)[
        [*_BIM_COLUMNS, *further]
    ]


_SIGNATURES = ((0, _SIGNATURE),)
_PGENLIB: dict[str, Any] = {"extra": "genetics", "modules": ("pgenlib",)}
FORMATS = (
    Format("PLINK", (".bed",), lambda file, _: BedFile(file), signatures=_SIGNATURES, holds="genotypes"),
    Format(
        "PLINK 2",
        (".pgen",),
        lambda file, _: PgenFile(file),
        signatures=_SIGNATURES,
        extra="genetics",
        modules=("pgenlib",),
        holds="genotypes",
    ),
)
