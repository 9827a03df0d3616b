"""Checkpoints of solution paths: an interrupted path resumes with bit-identical results."""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dfact
from dfact.engine.checkpoint import CheckpointedSession, resume_point
from dfact.engine.executors import LocalSession
from dfact.errors import ParameterError, StoreError
from dfact.models.cp.path import SolutionPath
from dfact.models.cp.penalty_selection import CRITERIA, select_penalty
from dfact.selection.result import Selection
from tests.cases import exhaustive_after
from tests.engine.test_checkpoint import InterruptionError, damage, tensor
from tests.models.cp.test_elastic_cp import answers, assert_same, many_partitions

__all__ = ["many_partitions"]
LAMBDAS = [1.0, 60.0, 100.0, 1e6]
KINDS: dict[str, dict[str, Any]] = {"fill": {"missing": "fill"}, "exact": {"missing": "exact"}, "stochastic": {"solver": "stochastic"}}


def cp(**parameters: Any) -> dfact.ElasticCP:
    return dfact.ElasticCP(**{"n_components": 4, "n_init": 1, "l1_ratio": 0.5, "max_iter": 6, "tol": 1e-2, "random_state": 0} | parameters)


def same(first: SolutionPath, second: SolutionPath) -> None:
    """Assert that both paths are bit-identical."""
    assert first.table.equals(second.table)
    for i, step in enumerate(first.steps):
        for refined in {False, step.refined is not None}:
            assert_same(first.at(i, refined=refined), second.at(i, refined=refined))
        assert (step.refined is None) == (second.steps[i].refined is None)


@contextmanager
def lost_at(number: int) -> Iterator[None]:
    """Interrupt the driver when any session requests this step."""
    replay, requested = CheckpointedSession._replay, 0

    def counted(session: CheckpointedSession, kind: str, name: str) -> Any:
        nonlocal requested
        requested += 1
        if requested == number:
            raise InterruptionError
        return replay(session, kind, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointedSession, "_replay", counted)
        yield


def steps_of(work: Callable[[], Any]) -> int:
    """Return the number of steps that all sessions of the work request."""
    replay, requested = CheckpointedSession._replay, 0

    def counted(session: CheckpointedSession, kind: str, name: str) -> Any:
        nonlocal requested
        requested += 1
        return replay(session, kind, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointedSession, "_replay", counted)
        work()
    return requested


@pytest.mark.further
@pytest.mark.parametrize(("kind", "every"), exhaustive_after(1, [("stochastic", 4), ("stochastic", 1), ("fill", 1), ("exact", 4)]))
def test_path_interrupted_anywhere_resumes_with_the_same_bits(kind: str, every: int, tmp_path: Path) -> None:
    X, settings = tensor(every, 0.3), KINDS[kind] | {"random_state": every, "checkpoint_every": every}
    undisturbed = cp(**settings).path(X, LAMBDAS)
    assert undisturbed.table["rank"].nunique() > 2
    total = steps_of(lambda: same(cp(**settings).path(X, LAMBDAS, checkpoint=tmp_path / "complete.zarr"), undisturbed))
    assert total - every < resume_point(tmp_path / "complete.zarr") <= total
    lost = np.sort(np.random.default_rng(every).choice(np.arange(2, total + 1), 4, replace=False))
    done = []
    for number in lost:  # each try resumes the previous one
        with pytest.raises(InterruptionError), lost_at(number):
            cp(**settings).path(X, LAMBDAS, checkpoint=tmp_path / "lost.zarr")
        done.append(resume_point(tmp_path / "lost.zarr"))
    assert done == sorted(done)
    assert done[-1] > lost[-1] - 1 - every
    same(cp(**settings, checkpoint=tmp_path / "lost.zarr").path(X, LAMBDAS), undisturbed)
    same(cp(**settings, checkpoint=tmp_path / "lost.zarr").path(X, LAMBDAS), undisturbed)  # nothing remains to be computed


@pytest.mark.further
@pytest.mark.usefixtures("many_partitions")
def test_path_of_stored_data_resumes_on_another_executor(client: Client, tmp_path: Path) -> None:
    dataset = dfact.import_array(answers(4000, 5), tmp_path / "data.zarr")
    settings: dict[str, Any] = {"n_components": 3, "random_state": 1, "checkpoint_every": 3}
    undisturbed = cp(**settings, executor="inline").path(dataset, [1.0, 30.0])
    for executor, number in ((client, 6), ("threads", 11), (client, 16)):
        with pytest.raises(InterruptionError), lost_at(number):
            cp(**settings, executor=executor).path(dataset, [1.0, 30.0], checkpoint=tmp_path / "path.zarr")
    assert resume_point(tmp_path / "path.zarr") == 15
    same(cp(**settings, executor="inline").path(dataset, [1.0, 30.0], checkpoint=tmp_path / "path.zarr"), undisturbed)


@pytest.mark.further
@pytest.mark.parametrize("kind", KINDS)
def test_resumed_path_uses_the_recorded_seed(kind: str, tmp_path: Path) -> None:
    X, settings = tensor(0), KINDS[kind] | {"random_state": None, "checkpoint_every": 3, "checkpoint": tmp_path / "path.zarr"}
    with pytest.raises(InterruptionError), lost_at(9):
        cp(**settings).path(X, LAMBDAS)
    resumed = cp(**settings).path(X, LAMBDAS)
    same(cp(**settings).path(X, LAMBDAS), resumed)


def test_checkpoint_of_another_path_is_refused(tmp_path: Path) -> None:
    path, X = tmp_path / "path.zarr", tensor(0)
    cp(checkpoint=path).path(X, LAMBDAS)
    other = np.where(np.arange(60)[:, None, None] == 7, 0.0, X)
    cases: dict[str, Callable[[], Any]] = {
        "lambdas is [1.0, 60.0, 100.0, 1000000.0], expected [1.0, 60.0]": lambda: cp(checkpoint=path).path(X, LAMBDAS[:2]),
        "refine is True, expected False": lambda: cp(checkpoint=path).path(X, LAMBDAS, refine=False),
        "l1_ratio is 0.5, expected 0.2": lambda: cp(checkpoint=path, l1_ratio=0.2).path(X, LAMBDAS),
        "data is": lambda: cp(checkpoint=path).path(other, LAMBDAS),
        "lambdas is [1.0, 60.0, 100.0, 1000000.0], expected absent": lambda: cp(checkpoint=path).fit(X),
    }
    for message, work in cases.items():
        with pytest.raises(ParameterError, match=f"belongs to another fit: {re.escape(message)}"):
            work()
    same(cp(checkpoint=path, executor="threads").path(X, np.array(LAMBDAS)), cp().path(X, LAMBDAS))


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of an interrupted path."""
    path = tmp_path_factory.mktemp("interrupted") / "path.zarr"
    with pytest.raises(InterruptionError), lost_at(12):
        cp(checkpoint=path, checkpoint_every=1).path(tensor(0), LAMBDAS)
    return path


@pytest.mark.parametrize("how", ["lost", "flipped", "metadata", "record"])
def test_incomplete_checkpoint_is_refused(how: str, interrupted: Path, tmp_path: Path) -> None:
    path = shutil.copytree(interrupted, tmp_path / "path.zarr")
    record = sorted(path.glob("steps-*"))[8]
    if how == "record":
        shutil.rmtree(record)
    elif how == "metadata":
        damage(record / "zarr.json", "truncated")
    else:
        damage(record / "arrays" / "0", how)
    with pytest.raises(StoreError, match=rf"{record.name}.* is missing or damaged .*; delete the checkpoint to start over"):
        cp(checkpoint=path).path(tensor(0), LAMBDAS)


def choose(X: Any, criterion: str = "held_out", path: Path | None = None, model: Any = None, **settings: Any) -> Selection:
    settings = {"random_state": 0, "checkpoint": path} | settings
    return select_penalty(cp(checkpoint_every=3) if model is None else model, X, criterion, LAMBDAS, **settings)


def assert_same_choice(first: Selection, second: Selection) -> None:
    assert first.table.equals(second.table)
    assert first.best_params == second.best_params
    assert_same(first.model, second.model)  # type: ignore[arg-type]


@pytest.mark.further
@pytest.mark.parametrize("criterion", exhaustive_after(1, CRITERIA))
def test_selection_interrupted_anywhere_resumes(criterion: str, tmp_path: Path) -> None:
    X = tensor(1, 0.2)
    undisturbed = choose(X, criterion)
    seldom = cp(checkpoint_every=100)
    total = steps_of(lambda: assert_same_choice(choose(X, criterion, tmp_path / "complete.zarr", seldom), undisturbed))
    last = 0
    for number in np.sort(np.random.default_rng(0).choice(np.arange(2, total + 1), 3, replace=False)):
        with pytest.raises(InterruptionError), lost_at(number):
            choose(X, criterion, tmp_path / "lost.zarr")
        done = sum(resume_point(path) for path in (tmp_path / "lost.zarr").iterdir() if path.is_dir())
        assert done >= last
        last = done
    assert_same_choice(choose(X, criterion, tmp_path / "lost.zarr"), undisturbed)


@pytest.mark.further
def test_another_rule_reuses_the_path_of_all_data(tmp_path: Path) -> None:
    X = tensor(0, 0.2)
    undisturbed, knee = choose(X, "bic", tmp_path / "results.zarr"), choose(X, "bic", rule="knee")
    passes, run = [], LocalSession.run

    def counted(session: LocalSession, request: Any) -> Any:
        passes.append(request)
        return run(session, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalSession, "run", counted)
        assert_same_choice(choose(X, "bic", tmp_path / "results.zarr"), undisturbed)
        assert_same_choice(choose(X, "bic", tmp_path / "results.zarr", rule="knee"), knee)
    assert len(passes) < 2 * 3, "at most the passes after the last version"
    assert_same_choice(choose(X, "held_out", tmp_path / "results.zarr"), choose(X, "held_out"))


@pytest.mark.further
@pytest.mark.parametrize("criterion", exhaustive_after(1, ["held_out", "split_half"]))
def test_resumed_selection_uses_the_recorded_seeds(criterion: str, tmp_path: Path) -> None:
    X, path = tensor(0, 0.2), tmp_path / "results.zarr"
    total = steps_of(lambda: choose(X, criterion, tmp_path / "complete.zarr", cp(checkpoint_every=100)))
    by_chance: dict[str, Any] = {"model": cp(checkpoint_every=3, random_state=None), "random_state": None}
    with pytest.raises(InterruptionError), lost_at(total * 2 // 3):
        choose(X, criterion, path, **by_chance)
    resumed = choose(X, criterion, path, **by_chance)
    assert_same_choice(choose(X, criterion, path, **by_chance), resumed)


def test_each_path_draws_from_the_generator_in_turn(tmp_path: Path) -> None:
    X = tensor(0, 0.2)

    def drawing(path: Path | None) -> Selection:
        return choose(X, "held_out", path, cp(random_state=np.random.RandomState(2)), random_state=np.random.RandomState(1))

    with pytest.raises(InterruptionError), lost_at(9):
        drawing(tmp_path / "results.zarr")
    assert_same_choice(drawing(tmp_path / "results.zarr"), drawing(None))


@pytest.mark.further
def test_checkpoint_of_another_selection_is_refused(tmp_path: Path) -> None:
    path, X = tmp_path / "results.zarr", tensor(0)
    for wrong, message in ((cp(n_components=0), "n_components is 0"), (cp(init="best"), "init is 'best'")):
        with pytest.raises(ParameterError, match=message):
            choose(X, "bic", path, wrong)
    assert not path.exists(), "an invalid call creates no checkpoint"
    choose(X, "bic", path)
    cases: dict[str, Callable[[], Any]] = {
        "holdout_fraction is 0.1, expected 0.2": lambda: choose(X, "bic", path, holdout_fraction=0.2),
        "seed is": lambda: choose(X, "bic", path, random_state=1),
        "l1_ratio is 0.5, expected 0.2": lambda: choose(X, "bic", path, cp(l1_ratio=0.2)),
        "data is": lambda: choose(np.abs(X), "bic", path),
        "lambdas is [1.0, 60.0, 100.0, 1000000.0], expected [1.0]": lambda: select_penalty(
            cp(), X, "bic", [1.0], random_state=0, checkpoint=path
        ),
    }
    for message, work in cases.items():
        with pytest.raises(ParameterError, match=f"belongs to another selection: {re.escape(message)}"):
            work()
    with pytest.raises(StoreError, match="holds a dfact checkpoint of a selection, expected a checkpoint of a fit"):
        cp(checkpoint=path).path(X, LAMBDAS)
