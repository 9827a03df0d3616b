"""Tables of a CP decomposition."""

from typing import Any

import numpy as np
import pandas as pd


def mode_table(model: Any, mode: int) -> pd.DataFrame:
    """Return slices × components of a mode, counted from 0, with vectors scaled to length 1; ``weights_`` holds the product of the scales.

    Modes 1 and 2 have their labels, other modes numbers.
    """
    A = np.asarray(model.factors_[mode])
    labels = {0: model.row_labels_, 1: model.column_labels_}.get(mode)
    lengths = np.linalg.norm(A, axis=0)
    index: pd.Index[Any] = pd.RangeIndex(len(A)) if labels is None else pd.Index(np.asarray(labels[:], dtype=object).astype(str))
    return pd.DataFrame(
        A / np.where(lengths > 0, lengths, 1), index=index.rename(f"mode {mode + 1}"), columns=model.get_feature_names_out()
    )
