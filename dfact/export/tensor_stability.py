"""Tables of the stability of a CP decomposition, with the signs in which its components are written."""

from dataclasses import replace

import numpy as np
import pandas as pd

from dfact.export.component_order import ComponentOrder
from dfact.models.cp.base import CPModel
from dfact.models.provenance import TensorStability


def written_stability(model: CPModel) -> TensorStability:
    """Return the stability of the components that are left, with the signs of :class:`ComponentOrder`."""
    result: TensorStability = model.stability_
    left = ~np.isnan(result.weight)
    signs = np.repeat(np.asarray(ComponentOrder.of(model).signs), model.slice_shape_, axis=0).T[left]
    low, high = result.low[left], result.high[left]
    return replace(
        result,
        similarity=result.similarity[:, left],
        estimate=result.estimate[left] * signs,
        low=np.where(signs < 0, -high, low),
        high=np.where(signs < 0, -low, high),
        selected=result.selected[left],
        weight=result.weight[left],
        weight_low=result.weight_low[left],
        weight_high=result.weight_high[left],
    )


def stability_table(model: CPModel) -> pd.DataFrame:
    """Return the loadings of the refits as a table, slices of modes 2 to N × (estimate, low, high, selected) of each component.

    The columns are named after the component, such as ``cpals0``, ``cpals0_low``, ``cpals0_high`` and ``cpals0_selected``.
    """
    result, columns = written_stability(model), {}
    for i, name in enumerate(model.get_feature_names_out()[: len(result.weight)]):
        columns[str(name)] = result.estimate[i]
        columns |= {f"{name}_{part}": getattr(result, part)[i] for part in ("low", "high", "selected")}
    return pd.DataFrame(columns, index=model.loadings_.index)
