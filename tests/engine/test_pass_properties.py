"""What every pass of the package keeps to, on the blocks of real fits: it is pure, its result may travel, and missing is missing.

Executors rest on these properties: a block that is processed again, elsewhere or from other memory gives bit-identical results.
"""

import importlib
import inspect
import pickle
import pkgutil
import tempfile
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

import dfact
from dfact.data.coerce import as_dataset
from dfact.engine.block_state import StateArrays
from dfact.engine.passes import PARTIAL_SUMS, Block, PartialSums, Pass, Released, RunPass, TiledPass, Withheld, Workspace, read_only
from dfact.linalg import kmeans, svd
from dfact.models.cp import kept_sample
from dfact.selection import (
    block_cross_validate,
    core_consistency,
    cross_validate_entries,
    select_by_held_out,
    select_number_of_components,
    select_penalty,
)
from tests.cases import installed
from tests.conftest import planted_answers
from tests.engine.test_checkpoint import CASES, memberships, skewed, tensor

_CALLS = 6  # kept of each pass, spread over all of its calls
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def passes() -> dict[str, type[Pass[Any, Any, Any]]]:
    """All passes that the package defines outside its engine, by module and name."""
    modules = [
        importlib.import_module(module.name) for module in pkgutil.walk_packages(dfact.__path__, "dfact.") if "engine" not in module.name
    ]
    kinds = {kind for module in modules for kind in vars(module).values() if inspect.isclass(kind) and Pass in kind.__mro__}
    own = [
        kind
        for kind in sorted(kinds, key=lambda kind: (kind.__module__, kind.__name__))
        if not kind.__module__.startswith("dfact.engine") and not inspect.isabstract(kind)
    ]
    return {f"{kind.__module__}.{kind.__name__}": kind for kind in own if hasattr(kind, "__dataclass_fields__")}


PASSES = passes()
SUMS = {name: kind for name, kind in PARTIAL_SUMS.items() if kind.__module__.startswith("dfact.")}
"""All sums with a name, after the modules of all passes."""
COMBINED = {"column_parts", "counted_tables", "fused"}
"""Sums that may leave a site and have an addition of their own: connections of columns, tables, and the sums of several fits."""
RUN_BY_SLICES = {
    "genetics": [f"models.binomial.passes.{name}" for name in ("CountPass", "DeviancePass", "LabelPass", "ProjectionPass", "StartPass")],
    "questionnaires": ["linalg.correlation.MomentsPass"],
}
"""Passes of the core that a slice alone runs here."""
for _slice, _names in RUN_BY_SLICES.items():
    for _name in () if installed(_slice) else _names:
        del PASSES[f"dfact.{_name}"]


@dataclass
class Call:
    """A call of a pass, with arguments of its own."""

    pass_: Pass[Any, Any, Any]
    block: Block
    arrays: StateArrays
    broadcast: Any

    def run(self, **changes: Any) -> tuple[StateArrays, PartialSums]:
        """Run the step on copies of the state and of the block, which get a workspace of their own."""
        block = replace(self.block, **{"work": Workspace()} | changes)
        arrays = {name: array.copy(order="K") for name, array in self.arrays.items()}
        return RunPass(self.pass_, self.broadcast).step(block, arrays)


class Recorder:
    """Keeps some calls of each pass while fits run in this process."""

    def __init__(self) -> None:
        self.calls: dict[str, list[Call]] = {}
        self._seen: dict[str, int] = {}
        self._rng = np.random.default_rng(0)

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, kind in PASSES.items():
            method = "accumulate" if issubclass(kind, TiledPass) else "step"
            monkeypatch.setattr(kind, method, self._recording(name, getattr(kind, method)))

    def _recording(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def record(pass_: Any, block: Block, state: Any, broadcast: Any, *total: Any) -> Any:
            seen = self._seen[name] = self._seen.get(name, 0) + 1
            place, kept = int(self._rng.integers(seen)), self.calls.setdefault(name, [])
            if type(pass_) is PASSES[name] and place < _CALLS:
                arrays = {key: array.copy(order="K") for key, array in state.arrays().items()}
                stored = read_only(deepcopy(block.stored))
                kept[place:] = [
                    Call(deepcopy(pass_), replace(block, stored=stored, work=Workspace()), arrays, deepcopy(broadcast)),
                    *kept[place + 1 :],
                ]
            return method(pass_, block, state, broadcast, *total)

        return record


def run_across_sites() -> None:
    """Fit over sites, which carry the sums that leave."""
    from dfact.sites.in_process import InProcessSites
    from tests.sites.conftest import stored_sites
    from tests.sites.test_bits import OPEN

    with tempfile.TemporaryDirectory() as folder, InProcessSites(stored_sites(Path(folder)), policy=OPEN) as sites:
        sites.fit(dfact.ICQF(2, max_iter=3))
        sites.fit(dfact.PCA(2, max_iter=2))


def run_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run what reaches every pass: fits of all families and their transforms, descriptions, comparisons and selections."""
    for case in CASES.values():
        X, model = case.data(0), case.make().set_params(executor="inline")
        model.fit(X)
        if hasattr(model, "transform"):
            model.transform(X)
    answers, groups = planted_answers(240, 12, 3, 0, 0.1), np.repeat(["a", "b"], 120)
    table = pd.DataFrame(answers, columns=[f"q{j}" for j in range(12)])
    inline: dict[str, Any] = {"executor": "inline"}
    few = inline | {"max_iter": 10, "tol": 0}

    confounders = pd.DataFrame({"age": np.arange(240.0)})
    bounded = dfact.ICQF(3, **few).fit(table, confounders=confounders)
    block_cross_validate(dfact.ICQF(**few), answers, {"n_components": [2]}, (3, 3), 3, random_state=0, in_memory=False)
    cross_validate_entries(dfact.NMF(loss="kullback-leibler", **few), answers, [2], n_folds=2, random_state=0)
    if installed("questionnaires"):
        dfact.describe(table, scales={"x": ["q0", "q1", "q2", "q3"], "y": ["q4", "q5", "q6", "q7"]}, **inline)
        dfact.selection.compare_groups(bounded, table, groups, n_resamples=30, test=False, confounders=confounders, random_state=0)
        dfact.FactorAnalysis(2, correlation="polychoric", **inline).fit(answers).transform(answers)

    dfact.PCA(2, scale="standard", **inline).fit(answers).score(answers)
    dfact.PCA(2, missing="mean", **inline).fit(answers)
    select_number_of_components(dfact.PCA(**inline), answers, [2], criterion="held_out")

    responses = memberships(1)
    dfact.GradeOfMembership(3, likelihood="binomial", max_iter=5, **inline).fit(responses)
    rng = np.random.default_rng(0)
    dfact.GradeOfMembership(3, **inline).fit(np.vstack([np.eye(3)] * 40 + [rng.dirichlet([1, 1, 1], 100)]) @ rng.uniform(0.1, 0.9, (3, 20)))
    if installed("genetics"):
        populations = dfact.Admixture(3, ploidy=4, max_iter=3, **inline).fit(responses)
        cross_validate_entries(populations, responses, [2], n_folds=2, random_state=0)
        dfact.selection.block_bootstrap(populations, responses, 2, n_blocks=3, random_state=0)
        labels = np.array(["a", "b", "c"])[responses[:, 0].astype(int) % 3]
        dfact.Admixture(3, ploidy=4, max_iter=3, supervised=True, **inline).fit(responses, populations=labels)

    if installed("sites"):
        run_across_sites()

    waves = tensor(1)
    cp = dfact.ElasticCP(3, init="svd", **few).fit(waves)
    core_consistency(cp, waves)
    for solver in ("bcd", "stochastic"):
        select_penalty(dfact.ElasticCP(3, solver=solver, **few), waves, lambdas=[0.5, 5.0], random_state=0)
    select_by_held_out(dfact.ExpectileMF(tau=0.2, **few), skewed(1), {"n_components": [2]}, random_state=0)
    measurements = as_dataset(rng.normal(size=(100, 20)))
    dfact.ExpectileMF(2, tau=0.2, **few).fit_measurements(measurements, rng.normal(size=100), (5, 4))
    with monkeypatch.context() as small:
        small.setattr(kept_sample, "_ENTRIES", 1)
        small.setattr(kept_sample, "_OBSERVATIONS", 1)
        small.setattr(kept_sample, "_ROWS", 1)
        dfact.ElasticCP(3, **few).fit(waves)
        small.setattr(kmeans, "_SAMPLE", 100)
        small.setattr(svd, "_GRAM_COLUMNS", 5)
        dfact.GradeOfMembership(3, **inline).fit(responses)
        small.setattr(svd, "_BASIS_ENTRIES", 10)
        dfact.GradeOfMembership(3, **inline).fit(responses)


@pytest.fixture(scope="module")
def calls() -> dict[str, list[Call]]:
    recorder = Recorder()
    with pytest.MonkeyPatch.context() as monkeypatch:
        recorder.patch(monkeypatch)
        run_everything(monkeypatch)
    return recorder.calls


def same(found: Any, expected: Any) -> bool:
    """Whether two states, sums or broadcasts are bit-identical."""
    if isinstance(expected, np.ndarray):
        return (
            isinstance(found, np.ndarray)
            and found.dtype == expected.dtype
            and found.shape == expected.shape
            and found.tobytes() == expected.tobytes()
        )
    if isinstance(expected, dict):
        return expected.keys() == found.keys() and all(same(found[key], value) for key, value in expected.items())
    if isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(map(same, found, expected))
    if is_dataclass(expected):
        return all(same(getattr(found, part.name), getattr(expected, part.name)) for part in fields(expected))
    if hasattr(expected, "__dict__"):
        return same(vars(found), vars(expected))
    return bool(found == expected) or (found != found and expected != expected)


@pytest.mark.further
@pytest.mark.parametrize("name", PASSES)
def test_a_step_has_the_same_bits_again_and_elsewhere_and_changes_nothing_else(name: str, calls: dict[str, list[Call]]) -> None:
    assert calls.get(name), "expected a fit in run_everything that uses the pass"
    for call in calls[name]:
        broadcast, pass_, stored = deepcopy(call.broadcast), deepcopy(call.pass_), call.block.stored.copy()
        expected = call.run()
        assert same(call.run(), expected)
        assert same(call.broadcast, broadcast)
        assert same(call.pass_, pass_)
        assert same(call.block.stored, stored)
        elsewhere = pickle.loads(pickle.dumps(call))
        elsewhere.block = replace(elsewhere.block, stored=read_only(elsewhere.block.stored))
        assert same(elsewhere.run(), expected)


@pytest.mark.parametrize("name", PASSES)
def test_a_state_outlives_the_block_and_its_sums_add_up(name: str, calls: dict[str, list[Call]]) -> None:
    for call in calls[name]:
        work = Workspace()
        arrays, sums = call.run(work=work)
        lasting = list(work._arrays.values())
        for key, array in arrays.items():
            assert not any(np.shares_memory(array, other) for other in lasting), f"{key} lies in the workspace"
            assert sp.issparse(call.block.stored) or not np.shares_memory(array, call.block.stored), f"{key} lies in the data"
        assert same(call.pass_.state_type.of(arrays).arrays(), arrays)
        total, before = sums.accumulator(), deepcopy(sums)
        total.add(sums)
        assert same(sums, before)
        again = before.accumulator()
        again.add(before)
        assert same(total, again)


def as_codes(block: Block) -> NDArray[np.uint8] | None:
    """Return the entries of a block as codes, 255 where missing; None if they are not small whole numbers."""
    if block.dtype is None or not isinstance(block.stored, np.ndarray):
        return None
    values = np.nan_to_num(block.stored, nan=255)
    return read_only(values.astype(np.uint8)) if np.isin(values, np.arange(256)).all() else None


@pytest.mark.further
@pytest.mark.parametrize("name", PASSES)
def test_missing_entries_are_the_same_by_code_and_as_nan(name: str, calls: dict[str, list[Call]]) -> None:
    for call in calls[name]:
        codes = as_codes(call.block)
        if codes is not None:
            floats = read_only(call.block.stored.astype(call.block.dtype))
            assert same(call.run(stored=codes, missing_code=255), call.run(stored=floats, missing_code=None))


@pytest.mark.needs(*RUN_BY_SLICES)
def test_most_passes_were_seen_with_codes_and_with_missing_entries(calls: dict[str, list[Call]]) -> None:
    coded = {name: [codes for call in kept if (codes := as_codes(call.block)) is not None] for name, kept in calls.items()}
    assert sum(bool(found) for found in coded.values()) >= len(PASSES) / 2
    assert sum(any((codes == 255).any() for codes in found) for found in coded.values()) >= len(PASSES) / 4


@pytest.mark.parametrize("name", SUMS)
def test_sums_declare_whether_they_may_leave_a_site(name: str) -> None:
    kind = SUMS[name]
    declared = kind.disclosure
    assert isinstance(declared, (Released, Withheld)), f"{kind.__qualname__} needs disclosure=Released(…) or Withheld(…)"
    if isinstance(declared, Withheld):
        assert declared.reason
        return
    named = {*declared.counts, *filter(None, (declared.groups, declared.connections))}
    assert declared.content
    assert named <= {field.name for field in fields(kind)}
    assert kind.add is PartialSums.add or name in COMBINED, "rows that are gathered or compared are not summed"


def test_a_subclass_of_sums_that_may_leave_declares_it_again() -> None:
    @dataclass
    class Further(PartialSums, name="test_further", disclosure=Released("sums")):
        total: NDArray[Any]

    @dataclass
    class WithRows(Further):
        rows: NDArray[Any]

    try:
        assert Further.disclosure is not None
        assert WithRows.disclosure is None
    finally:
        del PARTIAL_SUMS["test_further"]
