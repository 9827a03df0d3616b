"""VCF: the genotypes (GT) of a text file, plain or compressed, which is read once and kept packed in a temporary file."""

import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NoReturn, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.errors import DataError, ParameterError
from dfact.genetics.genotype_file import GenotypeFile, pack, parse_numbers, person_labels
from dfact.genetics.kernels import UNLISTED, parse_calls
from dfact.imports.readers.arrays.array_files import file_errors
from dfact.imports.readers.base import Format
from dfact.storage.files import TemporaryFolder
from dfact.storage.input_files import InputFile

_READ_BYTES = 1 << 23
_FIXED = ("CHROM", "POS", "ID", "REF", "ALT", "QUAL", "FILTER", "INFO", "FORMAT")
_PASSED = ("PASS", ".", "")


class VCFFile(GenotypeFile):
    """Genotypes of a VCF file. As in a .bed file that PLINK makes of it, A1 is ALT and A2 is REF."""

    def __init__(self, file: InputFile) -> None:
        self.file, self.name = file, file.name
        folder = TemporaryFolder("vcf")
        folder.remove_with(self)
        self._packed = folder.path / "packed"
        self._fields: list[list[str]] = []
        with file_errors(self.name, "VCF"), os.fdopen(folder.new_file("packed"), "wb") as target, _open_text(file) as stream:
            self._read_all(stream, target)
        if not self._fields:
            raise DataError(f"{self.name} has no variants, expected a line for each after the line #CHROM; export it again")
        self._describe()

    @property
    def multiallelic(self) -> NDArray[np.bool_]:
        return self._multiallelic

    @property
    def failing(self) -> NDArray[np.bool_]:
        return self._failing

    def read_packed(self, start: int, stop: int) -> NDArray[np.uint8]:
        row_bytes = -(-len(self.labels) // 4)
        return np.fromfile(self._packed, np.uint8, (stop - start) * row_bytes, offset=start * row_bytes).reshape(-1, row_bytes)

    def _read_all(self, stream: BinaryIO, target: BinaryIO) -> None:
        """Read the header, then parse blocks of whole lines."""
        pending, number, in_header = b"", 0, True
        while True:
            window = stream.read(_READ_BYTES)
            cut = window.rfind(b"\n") + 1
            if window and not cut:
                pending += window
                continue
            block, pending = pending + window[:cut] if window else pending, window[cut:]
            while in_header and block:
                line, _, rest = block.partition(b"\n")
                if line.startswith(b"#CHROM"):
                    in_header = False
                    self._read_persons(line.rstrip(b"\r").decode())
                elif not line.startswith(b"##"):
                    raise DataError(f"line {number + 1} of {self.name} begins with {line[:20]!r}, expected the line #CHROM before it")
                block, number = rest, number + 1
            if block.strip():
                number += self._parse(block, number, target)
            if not window:
                break
        if in_header:
            raise DataError(f"{self.name} has no line #CHROM, expected it before the variants; export it again")

    def _read_persons(self, line: str) -> None:
        names = line.removeprefix("#").split("\t")
        if tuple(names[: len(_FIXED)]) != _FIXED or len(names) == len(_FIXED):
            raise DataError(
                f"{self.name} has the columns {', '.join(names[:12])}, expected {', '.join(_FIXED)} and a column for each individual"
            )
        self.persons = np.array(names[len(_FIXED) :], dtype=object)
        self.labels = person_labels(self.name, None, self.persons)

    def _parse(self, block: bytes, number: int, target: BinaryIO) -> int:
        """Parse whole lines, after ``number`` others, write their packed genotypes, and return their number."""
        n, first, starts, stops, position = len(self.persons), len(self._fields), list[int](), list[int](), 0
        lines = block.removesuffix(b"\n").split(b"\n")
        for j, line in enumerate(lines):
            text = line.removesuffix(b"\r")
            fields = text.split(b"\t", len(_FIXED))
            if len(fields) <= len(_FIXED) or not (fields[8] == b"GT" or fields[8].startswith(b"GT:")):
                found = f"{len(fields)} fields" if len(fields) <= len(_FIXED) else f"the FORMAT {fields[8].decode(errors='replace')!r}"
                expected = "expected GT first in FORMAT, and a call of each individual"
                dosage = next((kind for kind in ("DS", "GP") if len(fields) > len(_FIXED) and kind.encode() in fields[8].split(b":")), None)
                remedy = f"; make calls of the dosages: plink2 --vcf {self.name} dosage={dosage} --make-bed --out calls" if dosage else ""
                raise DataError(f"line {number + j + 1} of {self.name} has {found}, {expected}{remedy}")
            starts.append(position + len(text) - len(fields[-1]))
            stops.append(position + len(text))
            self._fields.append([field.decode() for field in fields[:7]])
            position += len(line) + 1
        G = np.full((len(lines), n), 9, np.uint8)
        parsed = parse_calls(np.frombuffer(block, np.uint8), np.array(starts), np.array(stops), n, G)
        wrong = np.flatnonzero(parsed[:, 0] != n)
        if wrong.size:
            raise DataError(
                f"line {number + int(wrong[0]) + 1} of {self.name} does not have {n} calls, one for each individual; export it again"
            )
        for row, kind in zip(*(numbers.tolist() for numbers in np.nonzero(parsed[:, 1:] >= 0)), strict=True):
            site, person = self._fields[first + row], str(self.persons[parsed[row, 1 + kind]])
            if kind != UNLISTED:
                self.irregular.setdefault(first + row, (kind, person))
            elif "," not in site[4]:
                call = f"{site[0]}:{site[1]} has a call of {person!r}"
                raise DataError(f"line {number + row + 1} of {self.name}: {call} with an allele that is not listed; export it again")
        target.write(pack(G).tobytes())
        return len(lines)

    def _describe(self) -> None:
        columns = dict(
            zip(("chromosome", "position", "name", "A2", "A1", "quality", "filter"), zip(*self._fields, strict=True), strict=True)
        )
        self._fields.clear()
        table = pd.DataFrame({name: np.array(values, dtype=object) for name, values in columns.items()})
        self._multiallelic: NDArray[np.bool_] = table["A1"].str.contains(",", regex=False).to_numpy(bool)
        self._failing: NDArray[np.bool_] = ~table["filter"].isin(_PASSED).to_numpy(bool)
        position = parse_numbers(self.name, table["position"], "position", whole=True, what="variant")
        self.variants = table.assign(cM=0.0, position=position)[["chromosome", "name", "cM", "position", "A1", "A2"]]


@contextmanager
def _open_text(file: InputFile) -> Iterator[BinaryIO]:
    with file.open() as stream:
        if stream.read(2) != b"\x1f\x8b":
            stream.seek(0)
            yield stream
            return
        stream.seek(0)
        with gzip.GzipFile(fileobj=stream) as unpacked:
            yield cast(BinaryIO, unpacked)


def _refuse_bcf(file: InputFile) -> NoReturn:
    stem = file.name.removesuffix(".bcf")
    commands = f"bcftools view {file.name} -Oz -o {stem}.vcf.gz, then dfact import {stem}.vcf.gz {stem}.zarr"
    raise ParameterError(f"{file.name} has the format BCF, expected VCF or PLINK; convert it: {commands}")


def _open(file: InputFile, _: Any) -> VCFFile:
    return VCFFile(file)


FORMATS = (
    Format("VCF", (".vcf", ".vcf.gz", ".vcf.bgz"), _open, signatures=((0, b"##fileformat=VCF"), (0, b"\x1f\x8b")), holds="genotypes"),
    Format("BCF", (".bcf",), lambda file, _: _refuse_bcf(file), holds="genotypes"),
)
