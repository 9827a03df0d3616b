"""Facts about a model that hold for every instance of its class."""

from dataclasses import dataclass
from typing import Literal

from dfact.data.dataset import WORDS


@dataclass(frozen=True)
class Vocabulary:
    """Words for the parts of a model in reports and messages."""

    component: str = "factor"
    components: str = "factors"
    rows: str = "participants"
    items: str = "items"
    loadings: str = "Loadings"
    loading: str = "loading"
    entries: str = "answers"

    @property
    def row(self) -> str:
        """Word for one row."""
        return self.rows.removesuffix("s")

    @property
    def item(self) -> str:
        """Word for one item."""
        return self.items.removesuffix("s")

    @property
    def of_snps(self) -> bool:
        """Whether the items are SNPs, whose names say nothing on a component."""
        return self.items == WORDS["genotypes"].columns


@dataclass(frozen=True)
class ModelTraits:
    """Properties of a class of models that selection, report and commands depend on. The defaults suit a plain factorization."""

    vocabulary: Vocabulary = Vocabulary()
    tensor: bool = False
    """Whether X may have more than two modes."""
    nonnegative: bool = False
    """Whether negative values are refused and components have no sign."""
    implicit: Literal["zero", "missing"] = "zero"
    """Meaning of the entries that a sparse matrix does not store."""
    counts_empty_rows: bool = False
    """Whether a fit itself reports the rows without any observed entry, so that its data are taken without a warning."""
    original_units: bool = False
    """Whether ``inverse_transform`` returns answers as they were given, before the import shifted them."""
    copies_weights: bool = False
    """Whether an integer weight of a row equals as many copies of the row."""
    loading_intervals: bool = True
    """Whether intervals of loadings over refits cover what they should; the guide ``evidence`` has the measured rates."""
    centred_matching: bool = False
    """Whether components are matched by their differences from their mean."""
    matches_labels: bool = False
    """Whether new columns without alleles are matched with the fitted ones by their labels, instead of refused where they differ."""
    warm_starts: bool = False
    """Whether fits start from the loadings of others with fewer components or another penalty, by the solver of bounded models."""
    cannot_grow: str = "it keeps no sums of its rows"
    """Reason why rows cannot be added to a fitted model; a class of :class:`dfact.models.growth.estimator.Growing` has no use for it."""
    in_memory: bool = False
    """Whether a fit holds all data in memory, so that fits from several starts share no reads."""
    limited_parameters: tuple[str, ...] = ()
    """Names of the parameters that enter the arithmetic in the working precision, which limits them."""
