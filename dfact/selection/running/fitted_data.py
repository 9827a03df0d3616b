"""Check that data is what a model was fitted to."""

from typing import Any

from dfact.data.coerce import as_dataset, implicit_as_missing
from dfact.data.dataset import Dataset
from dfact.errors import DataError


def fitted_dataset(model: Any, data: Any) -> Dataset:
    """Return the data as a dataset; raise DataError if its shape, labels or fingerprint differ from those of the fitted data."""
    dataset = as_dataset(data)
    if model.traits.implicit == "missing":
        dataset = implicit_as_missing(dataset)
    n, items = model.row_factors().shape[0], [str(label) for label in model.column_labels_]
    slices = (len(items), *getattr(model, "slice_shape_", [0])[1:])
    if dataset.shape != (n, *slices):
        found, expected = ("×".join(map(str, shape)) for shape in (dataset.shape, (n, *slices)))
        raise DataError(f"the data is {found}, the model was fitted to {expected}; pass the data it was fitted to")
    labels = [str(label) for label in dataset.column_labels]
    if labels != items and [str(j) for j in range(len(items))] not in (labels, items):
        j = next(j for j, label in enumerate(labels) if label != items[j])
        raise DataError(f"column {j} of the data is {labels[j]!r}, of the fitted data {items[j]!r}; pass the data the model was fitted to")
    expected_fingerprint, fingerprint = model.fingerprint_, dataset.stored_fingerprint
    if expected_fingerprint is not None and fingerprint is not None and expected_fingerprint != fingerprint:
        raise DataError(
            f"the data has the fingerprint {fingerprint}, the model was fitted to {expected_fingerprint}; pass the data it was fitted to"
        )
    return dataset
