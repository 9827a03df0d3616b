"""Resamples of the subjects in a selection by modularity."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed import Client
from numpy.testing import assert_allclose
from numpy.typing import NDArray

import dfact
from dfact.models.gom.modularity import select_by_modularity
from dfact.report.selection import modularity_plot, selection_text


def classes(seed: int, n: int = 200, K: int = 3) -> NDArray[np.int64]:
    rng = np.random.default_rng(seed)
    return rng.binomial(4, np.eye(K)[rng.integers(0, K, n)] @ rng.random((K, 15)))


def select(X: Any, **settings: Any) -> Any:
    model = dfact.GradeOfMembership(random_state=0, executor=settings.pop("executor", None), **settings.pop("model", {}))
    return select_by_modularity(model, X, [2, 3, 4], **{"n_resamples": 10, "random_state": 0} | settings)


def test_table_has_the_range_of_the_resamples() -> None:
    R = classes(0)
    found, without = select(R), select(R, n_resamples=0)
    table = found.table
    assert_allclose(table["modularity"], without.table["modularity"])
    assert (table["resampled_2.5%"] < table["resampled_97.5%"]).all()
    assert "not confidence limits" in selection_text(found)
    assert table["chosen"].sum() == pytest.approx(1)
    assert found.best_params == {"n_components": 3}
    assert table["chosen"].idxmax() == 3
    assert list(without.table) == ["modularity"]
    assert "chosen" in selection_text(found).splitlines()[0]
    assert modularity_plot(found).axes
    assert modularity_plot(without).axes
    # The record of the model, and so its report, has the same figures.
    assert_allclose(found.model.selection_.table.set_index("n_components")["resampled_2.5%"], table["resampled_2.5%"])


@pytest.mark.further
def test_scores_are_those_of_fits_to_the_resampled_rows(tmp_path: Path) -> None:
    """The resamples are multinomial draws of the rows, on every executor and in memory or stored; the seed decides."""
    R = classes(1)
    few = {"n_resamples": 4}
    table = select(R, **few).table
    for data, settings in ((dfact.import_array(R, tmp_path / "r.zarr"), {"executor": "threads"}), (R, {"executor": "inline"})):
        pd.testing.assert_frame_equal(select(data, **few, **settings).table, table, rtol=1e-5)
    assert not np.allclose(select(R, **few, random_state=1).table["resampled_2.5%"], table["resampled_2.5%"])
    # The likelihood is maximized from the chosen classes, so that it does not change the scores of the resamples.
    refined = select(R, **few, model={"likelihood": "binomial", "max_iter": 2}).table
    assert_allclose(refined["resampled_2.5%"], table["resampled_2.5%"])


@pytest.mark.further
def test_executors_agree(client: Client) -> None:
    R = classes(2)
    pd.testing.assert_frame_equal(select(R, executor=client).table, select(R, executor="inline").table, rtol=1e-5)


@pytest.mark.further
def test_resamples_resume_from_a_checkpoint(tmp_path: Path) -> None:
    R, reports = classes(3), list[Any]()

    class StopError(Exception):
        pass

    def stop(report: Any) -> None:
        reports.append(report)
        if len(reports) == 9:  # after the five steps of the fit and four resamples
            raise StopError

    model = dfact.GradeOfMembership(random_state=0, callbacks=[stop], executor="inline")
    settings: dict[str, Any] = {"n_resamples": 8, "random_state": 0}
    with pytest.raises(StopError):
        select_by_modularity(model, R, [2, 3], checkpoint=tmp_path / "kept", **settings)
    found = select_by_modularity(model, R, [2, 3], checkpoint=tmp_path / "kept", **settings)
    model.callbacks = ()
    pd.testing.assert_frame_equal(found.table, select_by_modularity(model, R, [2, 3], **settings).table)
    with pytest.raises(dfact.ParameterError, match="belongs to another selection: n_components"):
        select_by_modularity(model, R, [2, 4], checkpoint=tmp_path / "kept", **settings)


def test_invalid_numbers_are_refused() -> None:
    for number in (1, -2, 2.5):
        with pytest.raises(dfact.ParameterError, match="n_resamples is"):
            select(classes(0), n_resamples=number)
