"""The words for the rows, the columns and the entries of a dataset, by the kind of its data: the one place that chooses them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from dfact.data.dataset import Dataset

Kind = Literal["genotypes", "answers", "measurements", "values"]


@dataclass(frozen=True)
class Words:
    """Words for the parts of data, in the plural; properties give the singular."""

    rows: str
    columns: str
    entries: str

    @property
    def row(self) -> str:
        """Word for one row."""
        return self.rows.removesuffix("s")

    @property
    def column(self) -> str:
        """Word for one column."""
        return self.columns.removesuffix("s")

    @property
    def a_column(self) -> str:
        """Word for one column, with its article."""
        return f"{'an' if self.column[0] in 'aeiou' else 'a'} {self.column}"


WORDS: dict[Kind, Words] = {
    "genotypes": Words("individuals", "SNPs", "genotypes"),
    "answers": Words("participants", "items", "answers"),
    "measurements": Words("rows", "measurements", "values"),
    "values": Words("rows", "columns", "entries"),
}
"""Words by kind. Rows of measurements may be days, samples or people; those of other arrays anything."""


def kind_of(dataset: Dataset) -> Kind:
    """Return the kind of a dataset.

    Columns that an import described are answers; they are measurements if they have fractional values, and neither levels, nor
    wordings, nor scales.
    """
    if dataset.genotypes.variants is not None:
        return "genotypes"
    if dataset.codebook is None:
        return "values"
    described = any(item.levels or item.wording or item.scale or item.is_reversed for item in dataset.codebook)
    return "answers" if described or dataset.dtype.kind != "f" else "measurements"


def words_of(dataset: Dataset) -> Words:
    """Return the words for the parts of a dataset."""
    return WORDS[kind_of(dataset)]
