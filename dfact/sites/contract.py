"""The contract: a file with the columns, levels and ranges that the data of every site must have. It holds nothing about any row."""

import json
from dataclasses import replace
from os import PathLike
from pathlib import Path

import numpy as np

from dfact.data.confounders import ConfounderSummary
from dfact.data.dataset import Dataset
from dfact.data.weights import WeightSummary
from dfact.errors import FederationError, StoreError
from dfact.sites.description import Description
from dfact.sites.messages import Message
from dfact.storage.files import atomic_file


def contract_of(dataset: Dataset) -> Description:
    """Return the contract that a dataset keeps: its columns, types, levels, ranges and codebook, without counts."""
    described = Description.of("contract", dataset, extremes=True)
    limits = np.asarray(dataset.valid_range, np.float64)
    per_column = np.repeat(limits, described.observed.size // max(1, len(limits)), axis=0)
    return replace(
        described,
        sites=(("contract", 0),),
        confounders=tuple(_without_counts(each, dataset) for each in described.confounders),
        weights=None if described.weights is None else WeightSummary.of(np.zeros(0)),
        fingerprint="",
        n_empty_rows=0,
        observed=np.zeros_like(described.observed),
        minimum=per_column[:, 0].copy(),
        maximum=per_column[:, 1].copy(),
    )


def _without_counts(each: ConfounderSummary, dataset: Dataset) -> ConfounderSummary:
    limits = dataset.confounder_ranges.get(each.name)
    low, high = (0.0, 0.0) if limits is None or each.levels else (limits.low, limits.high)
    return ConfounderSummary(each.name, 0, 0, dict.fromkeys(each.levels, 0), low, high, ())


def write_contract(dataset: Dataset, path: str | PathLike[str], *, overwrite: bool = False) -> None:
    """Write the contract that a dataset keeps as JSON; raise StoreError if the file exists, unless ``overwrite``."""
    target = Path(path)
    message = contract_of(dataset).message("contract")
    text = json.dumps({"fields": message.fields, "arrays": [array.tolist() for array in message.arrays]}, ensure_ascii=False, indent=1)
    with atomic_file(target, overwrite=overwrite) as partial:
        partial.write_text(text + "\n", encoding="utf-8")


def read_contract(path: str | PathLike[str]) -> Description:
    """Read a contract; raise StoreError if the file is not one."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        offset, observed, *others = found["arrays"]
        arrays = [np.array(offset, np.float64), np.array(observed, np.int64), *(np.array(each, np.float64) for each in others)]
        if not isinstance(found["fields"], dict):
            raise TypeError("its fields are not named")
        return Description.from_message(Message(found["fields"], arrays), least_rows=0)
    except OSError as error:
        raise StoreError(f"the contract {path} cannot be read: {error}") from error
    except (ValueError, TypeError, KeyError, RecursionError, FederationError) as error:
        raise StoreError(f"{path} is not a contract ({error}); write one with 'dfact site contract'") from error
