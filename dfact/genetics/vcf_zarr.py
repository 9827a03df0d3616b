"""VCF Zarr: stores of bio2zarr and sgkit, in Zarr format 2 or 3."""

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import zarr
from numpy.typing import NDArray

from dfact.errors import DataError
from dfact.genetics.genotype_file import GenotypeFile, pack, person_labels
from dfact.genetics.kernels import HAPLOID, MISSING, POLYPLOID
from dfact.imports.readers.base import Format
from dfact.imports.readers.zarr_input import check_codecs, invalid_chunks_as_errors, open_input_store
from dfact.storage.arrays import member, read_errors
from dfact.storage.input_files import InputFolder

_GENOTYPES = "call_genotype"
_REQUIRED = (_GENOTYPES, "sample_id", "variant_contig", "contig_id", "variant_position", "variant_allele")
_FILTERS = ("variant_filter", "filter_id")
_NO_ALLELE = ("", ".")
_NO_CALL = -2  # fills the alleles that calls of fewer alleles lack
_MAX_PLOIDY = 64
_READ_ENTRIES = 1 << 24
_MAX_CHUNKS = 1 << 17  # of an array that describes variants or individuals: a damaged shape has chunks without end, none of which exist
_MAX_ALLELES, _MAX_CONTIGS = 1 << 12, 1 << 22


class VCFZarr(GenotypeFile):
    """Calls of a VCF Zarr store. As in a .bed file that PLINK makes of the VCF file, A1 is ALT and A2 is REF."""

    def __init__(self, folder: InputFolder) -> None:
        self.name = folder.name
        with read_errors(str(folder)), invalid_chunks_as_errors():
            group = zarr.open_group(open_input_store(folder.location), mode="r")
            found = {name: member(group, name) for name in (*_REQUIRED, "variant_id", *_FILTERS)}
        arrays = {name: check_codecs(self.name, each) for name, each in found.items() if isinstance(each, zarr.Array)}
        lacking = [name for name in _REQUIRED if name not in arrays]
        if lacking:
            raise DataError(f"{self.name} lacks the array {lacking[0]!r}, expected a VCF Zarr store; convert the VCF file with bio2zarr")
        self._calls = arrays[_GENOTYPES]
        m, n = ((*arrays[name].shape, 0)[0] for name in ("variant_position", "sample_id"))
        if self._calls.ndim != 3 or self._calls.shape[:2] != (m, n) or self._calls.dtype.kind != "i" or 0 in (m, n):
            raise DataError(
                f"{self.name}: {_GENOTYPES!r} is {self._calls.dtype} {self._calls.shape}, expected whole numbers of shape "
                f"({m}, {n}, 2); convert the VCF file again"
            )
        if not 0 < self._calls.shape[2] <= _MAX_PLOIDY:
            raise DataError(f"{self.name} holds {self._calls.shape[2]} alleles of a call, expected 1 to {_MAX_PLOIDY}; convert it again")
        _check_shapes(self.name, arrays, m)
        self.persons = _texts(arrays["sample_id"])
        self.labels = person_labels(self.name, None, self.persons)
        self._read_variants(arrays, m)
        self._failing = self._read_filters(arrays, m)

    def _read_filters(self, arrays: dict[str, Any], m: int) -> NDArray[np.bool_]:
        """Return whether each variant fails a filter; none does where the store has no filters."""
        if any(name not in arrays for name in _FILTERS):
            return np.zeros(m, np.bool_)
        names = _texts(arrays["filter_id"])
        if arrays["variant_filter"].shape != (m, len(names)) or arrays["variant_filter"].dtype.kind != "b":
            raise DataError(
                f"{self.name}: 'variant_filter' is {arrays['variant_filter'].shape}, expected ({m}, {len(names)}); convert it again"
            )
        with read_errors(f"the filters of {self.name}"):
            applied = np.asarray(arrays["variant_filter"][:])
        return np.asarray(applied[:, ~np.isin(names, "PASS")].any(axis=1), np.bool_)

    def _read_variants(self, arrays: dict[str, Any], m: int) -> None:
        alleles, contigs = _texts(arrays["variant_allele"]), _texts(arrays["contig_id"])
        with read_errors(f"the variants of {self.name}"):
            numbers, positions = np.asarray(arrays["variant_contig"][:]), np.asarray(arrays["variant_position"][:])
        if alleles.shape[1] < 2 or numbers.min() < 0 or numbers.max() >= len(contigs) or positions.dtype.kind not in "iu":
            raise DataError(f"{self.name}: the alleles or contigs of the variants are invalid; convert the VCF file again")
        self._multiallelic: NDArray[np.bool_] = np.any(~np.isin(alleles[:, 2:], _NO_ALLELE), axis=1)
        self.variants = pd.DataFrame(
            {
                "chromosome": contigs[numbers],
                "name": _texts(arrays["variant_id"]) if "variant_id" in arrays else np.full(m, ".", object),
                "cM": np.zeros(m),
                "position": positions.astype(np.int64),
                "A1": np.where(alleles[:, 1] == "", ".", alleles[:, 1]),
                "A2": alleles[:, 0],
            }
        )

    @property
    def multiallelic(self) -> NDArray[np.bool_]:
        return self._multiallelic

    @property
    def failing(self) -> NDArray[np.bool_]:
        return self._failing

    def read_packed(self, start: int, stop: int) -> NDArray[np.uint8]:
        step = max(1, _READ_ENTRIES // (2 * len(self.labels)))
        step = max(step // self._calls.chunks[0], 1) * self._calls.chunks[0]
        edges = [start, *range((start // step + 1) * step, stop, step), stop]
        return np.concatenate([self._read(a, b) for a, b in pairwise(edges)])

    def _read(self, start: int, stop: int) -> NDArray[np.uint8]:
        with read_errors(f"variants {start} to {stop} of {self.name}"):
            calls = np.asarray(self._calls[start:stop])
        alleles, regular = (calls != _NO_CALL).sum(axis=2), ~self._multiallelic[start:stop]
        missing = ((calls < 0) & (calls != _NO_CALL)).any(axis=2) | (alleles == 0)
        unlisted = (calls > 1).any(axis=2) & regular[:, None]
        if unlisted.any():
            j, i = (int(numbers[0]) for numbers in np.nonzero(unlisted))
            label, person = self.variants["name"].iloc[start + j], self.labels[i]
            found = f"the variant {label!r} has an allele of {person!r} that its list of alleles lacks"
            raise DataError(f"{self.name}: {found}, expected 0 or 1; convert the VCF file again")
        haploid, polyploid = (alleles == 1) & ~missing, alleles > 2
        for kind, found_calls in ((HAPLOID, haploid), (POLYPLOID, polyploid)):
            for j in np.flatnonzero(found_calls.any(axis=1) & regular).tolist():
                self.irregular.setdefault(start + j, (kind, str(self.labels[found_calls[j].argmax()])))
        return pack(np.where(missing | haploid | polyploid, MISSING, (calls == 0).sum(axis=2)))


def _check_shapes(name: str, arrays: dict[str, zarr.Array[Any]], m: int) -> None:
    """Raise DataError if the arrays that describe the variants differ in length, or if an array is too large to be a description."""
    described = {key: array for key, array in arrays.items() if key not in (_GENOTYPES, "variant_filter")}
    lengths = {described[key].shape[:1] for key in ("variant_contig", "variant_allele", "variant_id") if key in described}
    if lengths != {(m,)} or any(array.ndim != 1 + (key == "variant_allele") for key, array in described.items()):
        raise DataError(f"{name}: the arrays of the variants differ in length, expected {m}; convert the VCF file again")
    n_alleles, n_contigs = described["variant_allele"].shape[1], described["contig_id"].shape[0]
    if n_alleles > _MAX_ALLELES or n_contigs > _MAX_CONTIGS:
        counts = f"{n_alleles} alleles of a variant and {n_contigs} contigs"
        raise DataError(f"{name} has {counts}, expected at most {_MAX_ALLELES} and {_MAX_CONTIGS}; convert the VCF file again")
    for key, array in arrays.items():
        if 0 in array.chunks:
            raise DataError(f"{name}: {key!r} has chunks of {array.chunks}, expected at least one entry; convert the VCF file again")
    for key, array in described.items():
        if array.nchunks > _MAX_CHUNKS:
            chunks = f"{array.nchunks} chunks of {array.chunks}"
            raise DataError(f"{name}: {key!r} has {chunks}, expected at most {_MAX_CHUNKS}; convert the VCF file again")


def _texts(array: zarr.Array[Any]) -> NDArray[np.object_]:
    """Read an array as texts."""
    with read_errors(f"the array {array.name!r} of {array.store}"):
        values = np.asarray(array[...])
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "replace")
    texts = np.empty(values.shape, object)
    texts[...] = values.astype(object)
    return np.array([str(text) for text in texts.ravel()], dtype=object).reshape(texts.shape)


FORMATS = (Format("VCF Zarr", (".vcz", ".zarr"), lambda folder, _: VCFZarr(folder), folders=True, holds="genotypes"),)
