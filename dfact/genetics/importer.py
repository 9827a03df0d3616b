"""import_genotypes: write genotypes, which files hold variant by variant, as a dataset with a row for each individual."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import lcm
from os import PathLike
from typing import Any, Literal, get_args

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact.data.dataset import Dataset, Genotypes, write_variants
from dfact.data.layout import Layout
from dfact.data.memory_limit import parse_bytes
from dfact.data.run_digests import RunDigests, run_rows
from dfact.data.sources.base import ZarrSource
from dfact.data.statistics import ColumnStatistics
from dfact.data.stored_dataset import open_dataset
from dfact.errors import ParameterError
from dfact.genetics.chosen_variants import EMPTY, MULTIALLELIC, Rules, select_variants, variant_labels
from dfact.genetics.genotype_file import GenotypeFile, open_genotypes
from dfact.genetics.kernels import MISSING, TILE, count_codes, unpack_rows
from dfact.genetics.populations import read_population
from dfact.imports.writing.tasks import TaskPool, open_pool
from dfact.imports.writing.writer import Participants, StoredRows, dataset_writer
from dfact.storage.groups import scratch_store
from dfact.storage.location import parse_location

Treatment = Literal["error", "drop"]
_CHUNK_ENTRIES = 1 << 22
_PIECE_BYTES = 1 << 25  # of one read of the file
_MISSING_CODE = 1  # of .bed files
_SHOWN = 5
_STAGES = 3  # counting the genotypes, writing them, and reading them back for the digests


def import_genotypes(
    source: str | PathLike[str],
    path: str | PathLike[str],
    *,
    population: str | PathLike[str] | Sequence[str] | None = None,
    population_column: str | None = None,
    id_column: str | None = None,
    empty_variants: Treatment = "error",
    multiallelic: Treatment = "error",
    drop_invalid: bool = False,
    chromosomes: str | Sequence[str] | None = None,
    keep_failing: bool = False,
    memory_limit: int | str = "2GiB",
    n_readers: int | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
    note: Callable[[str], object] | None = None,
) -> Dataset:
    """Write genotypes as a dataset of individuals × variants.

    An entry is the number of A2 alleles, 0, 1 or 2, or 9 if it is missing. A2 is the sixth column of a .bim file, and REF of a .pgen
    file, a VCF file or a VCF Zarr store, so that one cohort is the same dataset in each format. The columns are labelled by the names
    of the variants; ``Dataset.genotypes.variants`` has their positions and alleles.

    Nothing is filtered: filter by frequency, missingness and linkage with PLINK before the import.

    Parameters
    ----------
    source : str or path
        A .bed file with its .bim and .fam, a .pgen file with its .pvar (.pvar.zst, .bim) and .psam (.fam), of which the hard calls are
        read, a VCF file (.vcf, .vcf.gz), of which the calls GT are read, or a VCF Zarr store (.vcz, .zarr). A local path or a URL.
    path : str or path
        Location of the new dataset.
    population : path, or sequence of texts
        Population of each individual: a text file with a line for each (.pop, .labels or any other ending), a table that names individuals
        and populations (.csv, .tsv, .fam, .psam, or a text with blanks or tabs between the fields), or the names themselves in the order
        of the individuals. "" and "-" stand for unknown. By default the .pop file next to the source, if there is one.
    population_column, id_column : str
        Columns of the table with the populations and the individual ids. By default a column with a usual name such as "pop", the family of
        a .fam file, or the only further one, and the column that holds most of the ids. Of a text without names they are numbers from
        "1" on. ``note`` says which columns were taken; where several may be meant, an error lists them.
    empty_variants : {"error", "drop"}
        Treatment of variants at which no individual has a genotype. ``Dataset.genotypes.dropped_variants``
        counts dropped variants.
    multiallelic : {"error", "drop"}
        Treatment of variants with more than two alleles.
    drop_invalid : bool
        Drop all invalid variants: those of the two kinds, with symbolic alleles such as * and <DEL>, with haploid calls or calls of more
        than two alleles, and with the name, position and alleles of others. Otherwise one error counts those of each kind.
    chromosomes : text or sequence of texts
        Chromosomes whose variants are taken: names and ranges, such as "1-22,X", or "all". By default all but the sex chromosomes and
        mitochondria (X, Y, XY, MT, or 23 to 26).
    keep_failing : bool
        Take variants that fail a filter of a VCF file, a VCF Zarr store or a .pvar file, too. By default they are left out, with a note.
    memory_limit : int or str
        Limit of the memory for genotypes, such as "4GiB". With more, fewer and wider chunks are written.
    n_readers : int
        Number of threads; by default one for each core.
    overwrite : bool
        Replace an existing dataset at ``path``.
    progress : function
        Called with the steps done and their number.
    note : function
        Called with sentences about the import, such as the number of dropped variants, or the column of the populations.

    Returns
    -------
    Dataset
        The new dataset, opened from ``path``.

    Raises
    ------
    DataError
        The file is damaged, person-major, or does not match the files next to it; variants are invalid.
    ParameterError
        The suffix names no format of genotypes; an invalid ``empty_variants``, ``multiallelic`` or ``memory_limit``.
    StoreError
        A file is missing; ``path`` exists, or cannot be written. No partial dataset is left.

    Examples
    --------
    >>> import dfact
    >>> from pathlib import Path
    >>> _ = Path("cohort.fam").write_bytes(b"f1 Ada 0 0 2 -9 %c f2 Ben 0 0 1 -9 %c f3 Eve 0 0 2 -9" % (10, 10))
    >>> _ = Path("cohort.bim").write_bytes(b"1 rs1 0 1000 C T %c 1 rs2 0 2000 A G" % 10)
    >>> _ = Path("cohort.bed").write_bytes(bytes.fromhex("6c1b01 38 2d"))
    >>> dataset = dfact.import_genotypes("cohort.bed", "cohort.zarr")
    >>> dataset.shape, dataset.source.read(0, 3).tolist(), dataset.genotypes.variants["A2"].tolist()
    ((3, 2), [[0, 9], [1, 2], [2, 1]], ['T', 'G'])
    """
    for name, value in (("empty_variants", empty_variants), ("multiallelic", multiallelic)):
        if value not in get_args(Treatment):
            raise ParameterError(f"{name} is {value!r}, expected 'error' or 'drop'")
    limit = parse_bytes(memory_limit)
    file = open_genotypes(source)
    n, steps = len(file.labels), _Steps(progress, _STAGES * len(file.variants))
    people = read_population(file, population, population_column, id_column, note)
    counts = _count(file, steps)
    empty = counts[:, _MISSING_CODE] == counts.sum(axis=1)
    treatments = {EMPTY: empty_variants, MULTIALLELIC: multiallelic}
    wanted = chromosomes.split(",") if isinstance(chromosomes, str) else chromosomes
    rules = Rules(wanted, keep_failing, [kind for kind, treatment in treatments.items() if treatment == "drop"], drop_invalid)
    kept = select_variants(file, empty, rules, note)
    variants = file.variants if len(kept) == len(counts) else file.variants.iloc[kept].reset_index(drop=True)
    labels, n_shared = variant_labels(file.name, variants)
    if n_shared and note is not None:
        note(f"{n_shared} variants share names and are labelled chromosome:position:A1:A2")
    plan = _Plan.of(n, len(kept), limit)
    with (
        dataset_writer(
            parse_location(path),
            (n, len(kept)),
            np.dtype(np.uint8),
            missing_code=MISSING,
            column_labels=labels,
            name=file.name,
            empty="keep",
            overwrite=overwrite,
        ) as writer,
        scratch_store(path) as scratch,
        open_pool("threads", n_readers, scratch) as pool,
    ):
        array = writer.create_values(np.empty((1, 1), np.uint8), plan.chunk_columns)
        _write(file, kept, array, plan, pool, steps)
        steps.begin(2)
        rows = _read_back(array, plan, pool, _statistics(counts[kept], n), steps)
        write_variants(writer.group, variants, _frequencies(counts[kept]))
        writer.finish(
            rows,
            Participants(file.labels, genotypes=Genotypes(people, len(counts) - len(kept))),
            valid_range=np.tile([0.0, 2.0], (len(kept), 1)),
        )
    return open_dataset(path)


class _Steps:
    """Progress over the stages, each of which has as many steps as there are variants."""

    def __init__(self, report: Callable[[int, int], None] | None, total: int) -> None:
        self._report, self._done, self._total = report, 0, total

    def add(self, n: int) -> None:
        self._done += n
        if self._report is not None:
            self._report(self._done, self._total)

    def begin(self, stage: int) -> None:
        """Begin a stage; dropped variants have no steps in those after the first."""
        self.add(self._total // _STAGES * stage - self._done)

    def share(self, stage: int, part: float) -> None:
        """Report that a part of a stage is done."""
        self.add(int((stage + part) * self._total / _STAGES) - self._done)


@dataclass(frozen=True)
class _Plan:
    """The cutting of a dataset of genotypes into chunks and panels that fit in a limit of memory."""

    shape: tuple[int, int]
    chunk_rows: int
    chunk_columns: int
    panel_columns: int
    """Number of variants whose packed genotypes are in memory at a time: a multiple of the columns of a chunk, or all."""
    digest_rows: int
    """Number of rows that are read back at a time."""

    @classmethod
    def of(cls, n: int, m: int, limit: int) -> "_Plan":
        layout = Layout.of((n, m))
        fitting = limit // 2 // -(-n // 4)
        if fitting < min(m, TILE):
            least = 2 * TILE * -(-n // 4)
            raise ParameterError(f"memory_limit is {limit} bytes, expected at least {least} for {n} individuals; raise it")
        n_chunks = max(1, round(layout.chunk_rows * m / _CHUNK_ENTRIES))
        columns = m if n_chunks == 1 else -(-m // n_chunks // TILE) * TILE
        columns = columns if columns <= fitting else fitting // TILE * TILE
        digest_rows = lcm(layout.chunk_rows, run_rows((m,)))
        return cls((n, m), layout.chunk_rows, columns, min(m, fitting // columns * columns), digest_rows)

    def tasks(self, start: int, stop: int) -> "list[tuple[slice, slice]]":
        """Return the rows and columns of the chunks of a panel, those with the same rows of some chunks together."""
        step = self.chunk_rows * max(-(-TILE // self.chunk_rows), _CHUNK_ENTRIES // (self.chunk_rows * self.chunk_columns))
        columns = [slice(j, min(j + self.chunk_columns, stop)) for j in range(start, stop, self.chunk_columns)]
        rows = [slice(i, min(i + step, self.shape[0])) for i in range(0, self.shape[0], step)]
        return [(each, chosen) for chosen in columns for each in rows]


def _pieces(file: GenotypeFile, start: int, stop: int) -> "list[tuple[int, int]]":
    """Cut a range of variants into those of one read."""
    step = max(1, _PIECE_BYTES // -(-len(file.labels) // 4))
    return [(first, min(first + step, stop)) for first in range(start, stop, step)]


def _count(file: GenotypeFile, steps: _Steps) -> NDArray[np.int64]:
    """Count the individuals with each code of a .bed file, for each variant (all variants, 4)."""
    counts = np.empty((len(file.variants), 4), np.int64)
    for start, stop in _pieces(file, 0, len(counts)):
        count_codes(file.read_packed(start, stop), len(file.labels), counts[start:stop])
        steps.add(stop - start)
    return counts


def _write(file: GenotypeFile, kept: NDArray[np.intp], array: zarr.Array[Any], plan: _Plan, pool: TaskPool, steps: _Steps) -> None:
    """Write the chunks, panel by panel."""
    panel = np.empty((plan.panel_columns, -(-plan.shape[0] // 4)), np.uint8)
    for start in range(0, len(kept), plan.panel_columns):
        numbers = kept[start : start + plan.panel_columns]
        for first, last in _pieces(file, int(numbers[0]), int(numbers[-1]) + 1):
            a, b = np.searchsorted(numbers, [first, last])
            panel[a:b] = file.read_packed(first, last)[numbers[a:b] - first]
        tasks = plan.tasks(start, start + len(numbers))

        def write(task: tuple[slice, slice], start: int = start) -> tuple[slice, slice]:
            rows, columns = task
            out = np.empty((rows.stop - rows.start, columns.stop - columns.start), np.uint8)
            unpack_rows(panel[columns.start - start : columns.stop - start], rows.start, out)
            array[rows, columns] = out
            return task

        finished = count(1)

        def receive(_: object, start: int = start, per_task: float = len(numbers) / len(tasks), finished: Iterator[int] = finished) -> None:
            steps.share(1, (start + per_task * next(finished)) / len(kept))

        pool.run(write, tasks, receive)


def _frequencies(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the frequency of A2 of each variant by the numbers of each code; NaN without any genotype."""
    none, _, one, two = counts.T
    with np.errstate(invalid="ignore"):
        frequencies: NDArray[np.float64] = (one + 2 * two) / (2 * (none + one + two))
    return frequencies


def _statistics(counts: NDArray[np.int64], n: int) -> ColumnStatistics:
    """Return the statistics of the variants by the numbers of each code of theirs."""
    _, missing, one, two = counts.T
    none = counts[:, 0]
    minimum = np.where(none > 0, 0.0, np.where(one > 0, 1.0, 2.0))
    maximum = np.where(two > 0, 2.0, np.where(one > 0, 1.0, 0.0))
    return ColumnStatistics(n - missing, minimum, maximum, n)


def _read_back(array: zarr.Array[Any], plan: _Plan, pool: TaskPool, statistics: ColumnStatistics, steps: _Steps) -> StoredRows:
    """Read the dataset by rows, for their digests; record the rows without any genotype in the statistics."""
    source, digests, n = ZarrSource(array), bytearray(), plan.shape[0]

    def digest(start: int) -> tuple[int, bytes, NDArray[np.intp]]:
        rows = source.read(start, min(start + plan.digest_rows, n))
        runs = RunDigests(plan.shape[1:])
        runs.update(rows)
        return len(rows), runs.finish(), np.flatnonzero((rows == MISSING).all(axis=1))

    done = 0

    def receive(result: tuple[int, bytes, NDArray[np.intp]]) -> None:
        nonlocal done
        n_rows, digest, empty = result
        digests.extend(digest)
        statistics.empty_rows.extend((done + empty[: _SHOWN - len(statistics.empty_rows)]).tolist())
        statistics.n_empty_rows += len(empty)
        done += n_rows
        steps.share(2, done / n)

    pool.run(digest, range(0, n, plan.digest_rows), receive)
    return StoredRows(n, np.arange(n), statistics, bytes(digests))
