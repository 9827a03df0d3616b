"""stack_groups: a table whose rows belong to groups becomes a tensor of groups × participants × items."""

from os import PathLike
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.layout import Layout
from dfact.data.statistics import as_float
from dfact.data.stored_dataset import open_dataset
from dfact.errors import DataError, ParameterError, warn
from dfact.imports.joins.join import DatasetLike
from dfact.imports.writing.writer import Participants, Progress, dataset_writer
from dfact.storage.groups import ensure_absent
from dfact.storage.location import parse_location

Scaling = Literal["range", "none"]
_MAX_GROUPS = 100


def stack_groups(
    dataset: DatasetLike,
    path: str | PathLike[str],
    by: str,
    *,
    scale: Scaling = "range",
    max_missing: float = 0.2,
    random_state: int = 0,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """Write a tensor of groups × participants × items, with the same number of participants, drawn at random, from each group.

    With an ordered group, such as the grade of a disease, the vectors of mode 1 of a :class:`dfact.ElasticCP` show how its components
    change with it, and those of mode 3 which items they consist of. Items with too many missing answers, and those that never vary, are
    left out with a warning. Other missing answers stay missing. By default each item is scaled to [0, 1] by its lowest and highest answer,

        z = (x − min x) / (max x − min x),

    over all participants. Each group has as many participants as the smallest one. Their order is random, as the i-th
    participants of different groups have nothing in common. Memory holds the participants of one group.

    Parameters
    ----------
    dataset : Dataset or path
        A dense dataset (n, m) of two modes with a categorical confounder.
    path : str or path
        Location of the new dataset (a folder, usually ``*.zarr``, or a URL such as ``s3://bucket/a.zarr``).
    by : str
        The confounder with the groups. Participants without a group are left out. Groups with numbers as names are in numerical order.
    scale : "range" or "none"
        Scale each item to [0, 1], or leave it as it is.
    max_missing : float
        Largest share of missing answers with which an item is kept.
    random_state : int
        Seed of the draws.
    overwrite : bool
        Replace an existing dataset at ``path``.
    progress : function
        Called with (groups written, total groups).

    Returns
    -------
    Dataset
        The new dataset (groups, participants of each, items), opened from ``path``.

    Raises
    ------
    DataError
        No categorical confounder of that name, fewer than two groups or more than 100, no item left, sparse values, more than two modes.
    ParameterError
        An unknown ``scale``; ``max_missing`` outside [0, 1].
    StoreError
        ``path`` exists, or cannot be written; no partial dataset is left.

    Warns
    -----
    UserWarning
        Items are left out.

    References
    ----------
    Shi et al. (2017), section 7.2.2.

    Examples
    --------
    >>> import dfact, numpy as np, pandas as pd
    >>> rng = np.random.default_rng(0)
    >>> grades = pd.DataFrame({"grade": pd.Categorical(rng.integers(0, 3, 60).astype(str))})
    >>> patients = dfact.import_array(rng.normal(size=(60, 4)), "patients.zarr", confounders=grades)
    >>> tensor = dfact.stack_groups(patients, "grades.zarr", "grade")
    >>> tensor.shape == (3, grades["grade"].value_counts().min(), 4)
    True
    """
    source, location = _open(dataset), parse_location(path)
    if scale not in get_args(Scaling):
        raise ParameterError(f"scale is {scale!r}, expected 'range' or 'none'")
    if not 0 <= max_missing <= 1:
        raise ParameterError(f"max_missing is {max_missing!r}, expected a share from 0 to 1, such as 0.2")
    ensure_absent(location, overwrite=overwrite)
    names, members = _groups(source, by)
    items, low, width = _items(source, scale, max_missing)
    labels = source.column_labels[items]
    size, generator = min(map(len, members)), np.random.default_rng(random_state)
    with dataset_writer(
        location,
        (len(names), size, len(items)),
        np.dtype(np.float64),
        missing_code=None,
        column_labels=np.arange(1, size + 1).astype(str).astype(object),
        name="the dataset",
        empty="keep",
        overwrite=overwrite,
    ) as writer:
        draws = (generator.permutation(rows)[:size] for rows in members)
        rows = (((_read(source, drawn)[:, items] - low) / width)[None] for drawn in draws)
        written = writer.write(rows, progress=progress)
        writer.finish(written, Participants(np.asarray(names, dtype=object)), mode_labels=(np.asarray(labels, dtype=object),))
    return open_dataset(path)


def _open(dataset: DatasetLike) -> Dataset:
    opened = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    if len(opened.shape) != 2:
        raise DataError(f"the dataset has shape {opened.shape}, expected two modes, participants × items")
    if opened.source.is_sparse:
        raise DataError("the dataset is sparse, expected a dense one: import it from a dense array")
    return opened


def _groups(dataset: Dataset, by: str) -> tuple[list[str], list[NDArray[np.intp]]]:
    """Return the names of the groups in their order, and the rows of each."""
    frame = dataset.confounders
    if frame is None or by not in frame:
        known = "none" if frame is None else ", ".join(map(str, frame))
        raise DataError(f"the dataset has no confounder {by!r}, expected one of {known}; import it with --confounder {by}:categorical")
    values = frame[by]
    if not hasattr(values, "cat"):
        raise DataError(f"confounder {by!r} is continuous, expected groups; import it with --confounder {by}:categorical")
    names = [str(name) for name in values.cat.categories]
    codes = values.cat.codes.to_numpy()
    present = [(name, np.flatnonzero(codes == code)) for code, name in enumerate(names)]
    present = sorted(((name, rows) for name, rows in present if len(rows)), key=lambda group: _number(group[0]))
    if not 2 <= len(present) <= _MAX_GROUPS:
        raise DataError(f"confounder {by!r} has {len(present)} groups with participants, expected 2 to {_MAX_GROUPS}")
    return [name for name, _ in present], [rows for _, rows in present]


def _number(name: str) -> float:
    """Return the name as a number, to sort by; other names are last, in their own order."""
    try:
        return float(name)
    except ValueError:
        return np.inf


def _items(dataset: Dataset, scale: str, max_missing: float) -> tuple[NDArray[np.intp], NDArray[Any], NDArray[Any]]:
    """Return the positions of the items that are kept, and what is subtracted from each and what it is divided by, in stored units."""
    statistics, n = dataset.statistics, dataset.shape[0]
    missing = 1 - statistics.observed / n
    low, high = (np.asarray(limits, np.float64) for limits in (statistics.minimum, statistics.maximum))
    rare, constant = missing > max_missing, ~(high > low)
    for left_out, why in ((rare, f"more than {max_missing:.0%} missing"), (constant & ~rare, "a single value")):
        if left_out.any():
            listed = ", ".join(str(label) for label in dataset.column_labels[left_out][:5])
            more = f" and {left_out.sum() - 5} others" if left_out.sum() > 5 else ""
            warn(f"{left_out.sum()} of {len(missing)} items have {why} and are left out: {listed}{more}")
    kept = np.flatnonzero(~rare & ~constant)
    if not len(kept):
        raise DataError(f"no item has a share of missing answers of at most {max_missing:g} and several values; raise max_missing")
    if scale == "none":
        return kept, -dataset.offset[kept].astype(np.float64), np.ones(len(kept))
    return kept, low[kept], (high - low)[kept]


def _read(dataset: Dataset, numbers: NDArray[np.intp]) -> NDArray[np.float64]:
    """Read rows in the given order, a chunk of the dataset at a time, in stored units, NaN where missing."""
    values = np.empty((len(numbers), dataset.shape[1]))
    for chunk in dataset.source.read_ranges(Layout.of(dataset.shape)):
        here = np.flatnonzero((numbers >= chunk.start) & (numbers < chunk.stop))
        if len(here):
            stored = dataset.source.read(chunk.start, chunk.stop)
            values[here] = as_float(stored[numbers[here] - chunk.start], dataset.missing_code, np.dtype(np.float64))
    return values
