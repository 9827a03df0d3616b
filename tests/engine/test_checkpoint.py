"""Checkpoints: an interrupted fit resumes, and ends with bit-identical results."""

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed import Client
from numpy.typing import NDArray

import dfact
from benchmarks.faults.fits import SOLVERS, bits, small_partitions
from dfact.data.sources.base import ArraySource
from dfact.engine.block_state import BlockState
from dfact.engine.checkpoint import CheckpointedSession, pack, resume_point, unpack
from dfact.engine.executors import resolve_executor
from dfact.engine.memory_plan import Footprint, make_plan
from dfact.engine.partitions import partitions
from dfact.engine.passes import Block, PartialSums, Pass, RunPass
from dfact.engine.requests import FusedSums
from dfact.errors import ParameterError, StoreError
from tests.cases import exhaustive_after, exhaustive_unless, of_installed
from tests.conftest import planted_answers
from tests.models.cp.test_elastic_cp import many_partitions

__all__ = ["many_partitions"]


class InterruptionError(Exception):
    """What stands for a lost driver where a whole process would be too slow."""


def interrupted(after: int) -> Callable[[Any], None]:
    def callback(iteration: Any) -> None:
        if iteration.number == after:
            raise InterruptionError

    return callback


def tensor(seed: int, missing: float = 0.1) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    X = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((size, 3)) for size in (60, 12, 8))) + 0.1 * rng.standard_normal((60, 12, 8))
    X[rng.random(X.shape) < missing] = np.nan
    return X


def skewed(seed: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    X = rng.random((150, 3)) @ rng.random((3, 60)) + 0.05 * rng.chisquare(3, (150, 60))
    X[rng.random(X.shape) < 0.5] = np.nan
    return X


def memberships(seed: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    Pi = np.vstack([np.eye(3)[rng.integers(0, 3, 300)], rng.dirichlet([1, 1, 1], 100)])
    return rng.binomial(4, Pi @ rng.random((3, 30))).astype(float)


@dataclass
class Case:
    make: Callable[[], Any]
    data: Callable[[int], NDArray[np.float64]]
    after: tuple[int, ...]
    """Iterations behind which the driver is lost."""


CASES = of_installed(
    {
        "icqf": Case(lambda: dfact.ICQF(4, max_iter=12, tol=0), lambda seed: planted_answers(300, 40, 4, seed, 0.1), (1, 7, 12)),
        "icqf-admm": Case(
            lambda: dfact.ICQF(4, max_iter=12, tol=0, solver="admm", rho="adaptive"),
            lambda seed: planted_answers(300, 40, 4, seed, 0.1),
            (5,),
        ),
        "icqf-random": Case(lambda: dfact.ICQF(3, max_iter=8, tol=0, init="random"), lambda seed: planted_answers(200, 30, 3, seed), (6,)),
        "nmf": Case(lambda: dfact.NMF(4, max_iter=12, tol=0), lambda seed: planted_answers(300, 40, 4, seed), (5,)),
        "nmf-missing": Case(lambda: dfact.NMF(4, max_iter=12, tol=0), lambda seed: planted_answers(300, 40, 4, seed, 0.1), (5,)),
        "nmf-divergence": Case(
            lambda: dfact.NMF(4, loss="kullback-leibler", max_iter=12, tol=0), lambda seed: planted_answers(300, 40, 4, seed, 0.1), (5,)
        ),
        "gom": Case(lambda: dfact.GradeOfMembership(3), memberships, (1, 2, 3, 4)),
        "gom-cone": Case(lambda: dfact.GradeOfMembership(3, vertex_hunting="svm-cone"), memberships, (3,)),
        "gom-simplex": Case(lambda: dfact.GradeOfMembership(3, method="srsc"), memberships, (3,)),
        "admixture": Case(lambda: dfact.Admixture(3, ploidy=4, max_iter=12, tol=0), memberships, (1, 5)),
        "pca": Case(lambda: dfact.PCA(3, max_iter=8, tol=0), skewed, (1, 5)),
        "emf-exact": Case(lambda: dfact.ExpectileMF(3, tau=0.2, ridge=0.1, max_iter=12, tol=0, solver="exact"), skewed, (1, 8)),
        "emf-surrogate": Case(lambda: dfact.ExpectileMF(3, tau=0.2, ridge=0.1, max_iter=12, tol=0, solver="surrogate"), skewed, (8,)),
        "emf-random": Case(lambda: dfact.ExpectileMF(3, tau=0.2, ridge=0.1, max_iter=9, tol=0, init="random"), skewed, (7,)),
        "cp": Case(lambda: dfact.ElasticCP(4, lam=0.5, max_iter=12, tol=0, missing="fill"), tensor, (1, 8)),
        "cp-exact": Case(lambda: dfact.ElasticCP(4, lam=0.5, max_iter=12, tol=0, missing="exact"), tensor, (1, 8)),
        "cp-stochastic": Case(lambda: dfact.ElasticCP(4, lam=0.5, max_iter=9, tol=0, solver="stochastic"), tensor, (1, 7)),
    }
)


INTERVALS = [
    (name, every)
    for number, (name, case) in enumerate(CASES.items())
    for every in (1, 3)
    if len(case.after) > 1 or every == (1, 3)[number % 2]
]
"""Cases and the steps between two versions of a checkpoint: both where several interruptions are tried, elsewhere one of them in turn."""
REPRESENTATIVE = {("icqf", 3), ("gom", 1), ("emf-exact", 3), ("cp-stochastic", 3)}


def fitted(model: Any) -> dict[str, Any]:
    """All a fit has found, as bytes."""
    found = {name: value for name, value in vars(model).items() if name.endswith("_") and not name.startswith("_")}
    return {name: [np.asarray(part).tobytes() for part in value] if isinstance(value, list) else value for name, value in found.items()}


def same(a: Any, b: Any) -> None:
    one, other = fitted(a), fitted(b)
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, np.ndarray):
            assert np.array_equal(value, other[name], equal_nan=value.dtype.kind == "f"), name
        elif isinstance(value, (float, int, list, str)):
            assert value == other[name] or value != value, name  # NaN


def cut_short(case: Case, X: NDArray[np.float64], after: int, **settings: Any) -> None:
    """A fit whose driver is lost behind an iteration."""
    with pytest.raises(InterruptionError):
        case.make().set_params(**settings, callbacks=[interrupted(after)]).fit(X)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("name", "every"), exhaustive_unless({("icqf", 3), ("gom", 1), ("emf-exact", 3), ("cp-stochastic", 3)}.__contains__, INTERVALS)
)
def test_an_interrupted_fit_resumes_and_ends_with_the_same_bits(name: str, every: int, tmp_path: Path) -> None:
    case = CASES[name]
    X, seed = case.data(every), {"random_state": every} if "random_state" in case.make().get_params() else {}
    undisturbed = case.make().set_params(**seed).fit(X)
    done = []
    for after in case.after:
        kept = {"checkpoint": tmp_path / f"{after}.zarr", "checkpoint_every": every} | seed
        cut_short(case, X, after, **kept)
        done.append(resume_point(kept["checkpoint"]))
        same(case.make().set_params(**kept).fit(X), undisturbed)
        assert resume_point(kept["checkpoint"]) >= done[-1]
        same(case.make().set_params(**kept).fit(X), undisturbed)  # nothing is left to be done
    assert any(done)


@pytest.mark.parametrize("after", [1, 3])
def test_a_sample_in_some_partitions_is_checkpointed(after: int, tmp_path: Path) -> None:
    """The monitoring sample of a stochastic fit is in some partitions, others have factors."""
    solver, path = SOLVERS["ElasticCP stochastic"], tmp_path / "checkpoint.zarr"
    X = solver.data(after)
    with small_partitions():
        undisturbed = bits(solver.make(executor="inline").fit(X))
        with pytest.raises(InterruptionError):
            solver.make(executor="threads", checkpoint=path, checkpoint_every=1, callbacks=[interrupted(after)]).fit(X)
        assert resume_point(path) > 0
        assert bits(solver.make(executor="inline", checkpoint=path).fit(X)) == undisturbed


@pytest.mark.parametrize("name", exhaustive_after(2, ["icqf-random", "cp-stochastic", "emf-random", "cp", "cp-exact", "gom"]))
def test_a_resumed_fit_uses_the_recorded_random_seed(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    X = case.data(0)
    kept = {"checkpoint": tmp_path / "checkpoint.zarr", "checkpoint_every": 2, "random_state": None}
    histories: list[list[float]] = [[], []]

    def listening(history: list[float], stop: int) -> Callable[[Any], None]:
        def callback(iteration: Any) -> None:
            history.append(iteration.objective)
            if iteration.number == stop:
                raise InterruptionError

        return callback

    with pytest.raises(InterruptionError):
        case.make().set_params(**kept, callbacks=[listening(histories[0], 4)]).fit(X)
    resumed = case.make().set_params(**kept, callbacks=[listening(histories[1], -1)]).fit(X)
    assert np.array_equal(histories[1][: len(histories[0])], histories[0], equal_nan=True)
    same(case.make().set_params(**kept).fit(X), resumed)


def kept(path: Path, **parameters: Any) -> Any:
    settings = {"n_components": 3, "max_iter": 8, "tol": 0, "checkpoint": path, "checkpoint_every": 4} | parameters
    return dfact.ICQF(**settings)


@pytest.mark.parametrize("stopped", [4, 7])
def test_a_resumed_fit_shows_each_iteration_once(stopped: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X, path = planted_answers(200, 8, 2, 0), tmp_path / "fit.checkpoint"

    def stop(iteration: Any) -> None:
        if iteration.number == stopped and not iteration.replayed:
            raise KeyboardInterrupt

    def shown(*callbacks: Any) -> list[int]:
        model = dfact.ICQF(
            2, max_iter=12, tol=0, checkpoint=path, checkpoint_every=1, callbacks=[dfact.Progress("fit", every=0), *callbacks]
        )
        with contextlib.suppress(KeyboardInterrupt):
            model.fit(X)
        return [int(number) for number in re.findall(r"^fit: (\d+) of 12, objective", capsys.readouterr().err, re.MULTILINE)]

    assert shown(stop) == [*range(1, stopped + 1)]
    assert shown() == [*range(stopped, 13)], "the last one may have been lost with the process"
    heard: list[Any] = []
    shutil.rmtree(path)
    assert shown(heard.append) == [*range(1, 13)]
    assert not any(iteration.replayed for iteration in heard)


def test_a_checkpoint_of_another_fit_is_refused(tmp_path: Path) -> None:
    path, X = tmp_path / "checkpoint.zarr", planted_answers(200, 30, 3, 0, 0.1)
    weights = np.ones(200)
    kept(path).fit(X, sample_weight=weights)
    other = X.copy()
    other[5, 7] = 1 - np.nan_to_num(other[5, 7], nan=0) % 2
    cases: dict[str, Callable[[], Any]] = {
        "beta is 0.1, expected 0.2": lambda: kept(path, beta=0.2).fit(X, sample_weight=weights),
        "max_iter is 8, expected 10": lambda: kept(path, max_iter=10).fit(X, sample_weight=weights),
        "bounds is None, expected": lambda: kept(path, bounds=(0, np.full(30, 3.0))).fit(X, sample_weight=weights),
        "data is": lambda: kept(path).fit(other, sample_weight=weights),
        "expected ": lambda: kept(path).fit(X, sample_weight=weights + np.eye(200)[3]),  # weights belong to the data
        "; choose another path": lambda: kept(path).fit(X),
        "dtype is 'float64', expected 'float32'": lambda: kept(path, dtype="float32").fit(X, sample_weight=weights),
        "model is 'ICQF', expected 'NMF'": lambda: dfact.NMF(3, checkpoint=path).fit(X),
    }
    for message, fit in cases.items():
        with pytest.raises(ParameterError, match=f"belongs to another fit: .*{re.escape(message)}"):
            fit()
    # What changes no result may change.
    kept(path, checkpoint_every=1, memory_limit="3GiB", executor="threads").fit(X, sample_weight=weights)


def test_the_checkpoint_of_a_fit_takes_the_parameter_s_place(tmp_path: Path) -> None:
    X = planted_answers(100, 20, 3, 0)
    kept(tmp_path / "unused.zarr").fit(X, checkpoint=tmp_path / "used.zarr")
    assert [path.name for path in tmp_path.iterdir()] == ["used.zarr"]
    with pytest.raises(ParameterError, match="checkpoint_every is 0, expected an integer of at least 1"):
        kept(tmp_path / "unused.zarr", checkpoint_every=0).fit(X)


@pytest.mark.parametrize("location", [5, "", 0.5, b"x", ["x"]])
def test_a_checkpoint_without_a_location_is_refused(location: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    X = planted_answers(60, 10, 2, 0)
    kinds = (dfact.ICQF, dfact.NMF, dfact.GradeOfMembership, dfact.ExpectileMF, dfact.ElasticCP)
    fits: list[Any] = [lambda kind=kind: kind(2, checkpoint=location).fit(X) for kind in kinds]
    fits.append(lambda: dfact.ICQF(2).fit(X, checkpoint=location))
    fits.append(lambda: dfact.selection.block_cross_validate(dfact.ICQF(), X, {"n_components": [2]}, checkpoint=location))
    fits.append(lambda: dfact.selection.bootstrap(dfact.ICQF(2).fit(X), X, 2, checkpoint=location))
    for fit in fits:
        with pytest.raises(ParameterError, match=r"the location is .*, expected a path or a URL such as s3://bucket/prefix"):
            fit()
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    X = planted_answers(100, 20, 3, 0)
    dfact.import_array(X, tmp_path / "data.zarr")
    with pytest.raises(StoreError, match="holds a dfact dataset, expected a checkpoint"):
        kept(tmp_path / "data.zarr").fit(X)
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "to a friend.txt").write_text("Dear friend")
    with pytest.raises(StoreError, match=r"letters is not a Zarr group, expected a dfact checkpoint"):
        kept(tmp_path / "letters").fit(X)
    assert [path.name for path in (tmp_path / "letters").iterdir()] == ["to a friend.txt"]
    (tmp_path / "empty").mkdir()
    kept(tmp_path / "empty").fit(X)


def damage(file: Path, how: str) -> None:
    content = bytearray(file.read_bytes())
    if how == "lost":
        file.unlink()
        return
    if how == "truncated":
        file.write_bytes(content[: len(content) // 2])
        return
    content[len(content) // 2] ^= 16
    file.write_bytes(content)


@pytest.mark.faults
@pytest.mark.parametrize("how", ["lost", "truncated", "flipped"])
@pytest.mark.parametrize("of", ["steps", "state"])
def test_a_damaged_checkpoint_is_refused_with_its_location(of: str, how: str, tmp_path: Path) -> None:
    path, X = tmp_path / "checkpoint.zarr", planted_answers(300, 30, 3, 0, 0.1)
    with pytest.raises(InterruptionError):
        kept(path, callbacks=[interrupted(7)]).fit(X)
    [folder] = path.glob("steps-000001-*" if of == "steps" else "state-*")
    [chunk] = folder.glob("*/0")
    damage(chunk, how)
    with pytest.raises(StoreError, match=rf"{of}-.* is missing or damaged .*; delete the checkpoint to start over"):
        kept(path).fit(X)


@pytest.mark.faults
def test_an_incomplete_version_is_ignored(tmp_path: Path) -> None:
    path, X = tmp_path / "checkpoint.zarr", planted_answers(300, 30, 3, 0, 0.1)
    undisturbed = kept(path).set_params(checkpoint=None).fit(X)
    with pytest.raises(InterruptionError):
        kept(path, callbacks=[interrupted(7)]).fit(X)
    before = shutil.copytree(path, tmp_path / "before.zarr")
    assert resume_point(path) == 8
    kept(path).fit(X)
    assert resume_point(path) == 12
    # As if the driver had been lost while it wrote the last version: its marker is not there yet, the state before has not gone.
    [state] = path.glob("state-*")
    attributes = json.loads((state / "zarr.json").read_text())
    (state / "zarr.json").write_text(json.dumps(attributes | {"attributes": {}}))
    shutil.copytree(before, path, dirs_exist_ok=True)
    assert resume_point(path) == 8
    same(kept(path).fit(X), undisturbed)
    assert resume_point(path) == 12
    assert len(list(path.glob("state-*"))) == 1
    assert len(list(path.glob("steps-*"))) == 3


@pytest.mark.faults
def test_the_last_of_two_versions_is_used(tmp_path: Path) -> None:
    """A driver that is lost before it has removed the earlier version leaves both."""
    path, X = tmp_path / "checkpoint.zarr", planted_answers(300, 30, 3, 0, 0.1)
    with pytest.raises(InterruptionError):
        kept(path, callbacks=[interrupted(7)]).fit(X)
    earlier = shutil.copytree(path, tmp_path / "earlier.zarr")
    undisturbed = kept(path).fit(X)
    kept(path).fit(X)  # which removes the steps after the last version
    records = list(path.glob("steps-*/zarr.json"))
    shutil.copytree(earlier, path, dirs_exist_ok=True)
    for record in records:
        os.utime(record, (0, 0))
    same(kept(path).fit(X), undisturbed)
    assert {record.stat().st_mtime for record in records} == {0}  # nothing was computed again
    assert len(list(path.glob("state-*"))) == 1


@pytest.mark.faults
def test_two_processes_do_not_share_a_checkpoint(tmp_path: Path) -> None:
    path, X = tmp_path / "checkpoint.zarr", planted_answers(300, 30, 3, 0, 0.1)

    def overtake(iteration: Any) -> None:
        if iteration.number == 5:
            kept(path).fit(X)

    with pytest.raises(StoreError, match="another process has resumed the checkpoint"):
        kept(path, callbacks=[overtake]).fit(X)
    same(kept(path).fit(X), kept(path).set_params(checkpoint=None).fit(X))


@pytest.mark.process
@pytest.mark.faults
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk of its own needs root")
def test_a_full_disk_is_reported_and_the_fit_can_resume(tmp_path: Path) -> None:
    X, disk = planted_answers(3000, 100, 8, 0, 0.1), tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=640k", "tmpfs", disk], check=False, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        path = disk / "checkpoint.zarr"
        settings = {"n_components": 8, "max_iter": 40, "checkpoint_every": 2}
        with pytest.raises(StoreError, match=r"cannot write the checkpoint .*: the disk is full; its records so far are complete"):
            kept(path, **settings).fit(X)
        assert resume_point(path) > 0
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        same(
            kept(path, **settings).fit(X),
            kept(
                path,
                **settings,
            )
            .set_params(checkpoint=None)
            .fit(X),
        )
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.usefixtures("many_partitions")
def test_a_fit_resumes_on_any_executor(client: Client, tmp_path: Path) -> None:
    """From this machine to a cluster and back, with state in memory, in files and in the checkpoint."""
    X = planted_answers(9000, 40, 3, 0, 0.1)
    dfact.import_array(X, tmp_path / "data.zarr", missing=None)
    undisturbed = kept(tmp_path / "none", max_iter=14).set_params(checkpoint=None).fit(tmp_path / "data.zarr")
    path = tmp_path / "checkpoint.zarr"
    for executor, after in ((client, 5), ("threads", 9), (client, 13)):
        with pytest.raises(InterruptionError):
            kept(path, max_iter=14, executor=executor, callbacks=[interrupted(after)]).fit(tmp_path / "data.zarr")
    before = resume_point(path)
    same(kept(path, max_iter=14, executor="inline").fit(tmp_path / "data.zarr"), undisturbed)
    assert before in {resume_point(path) - 4, resume_point(path)}


@dataclass
class Ones(PartialSums, name="ones"):
    count: NDArray[Any]


@dataclass
class Counted(BlockState):
    counted: NDArray[Any]


@dataclass(frozen=True)
class CountPass(Pass[Counted, None, Ones]):
    """Counts the passes."""

    dtype: None = None
    state_type = Counted

    def start(self, block: Block) -> Counted:
        return Counted(np.zeros((1, block.matrix.shape[0])))

    def step(self, block: Block, state: Counted, broadcast: None) -> tuple[Counted, Ones]:
        return Counted(state.counted + 1), Ones((state.counted + 1).sum())


def test_the_scheduler_releases_results_that_a_checkpoint_holds(client: Client, tmp_path: Path) -> None:
    X = np.zeros((500, 3), np.float32)
    executor = resolve_executor(client, 1)
    plan = make_plan(ArraySource(X), X.dtype, Footprint(8, 8, 8, 0), executor.workers(None))
    session = executor.open(partitions(ArraySource(X), None, None), plan)
    sizes = []
    with CheckpointedSession(session, tmp_path / "checkpoint.zarr", 20, {}) as kept_session:
        for number in range(1, 401):
            assert kept_session.run(RunPass(CountPass(), None)).count == number * 500
            if number % 40 == 0:
                sizes.append(client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)))
        assert all((rows == 400).all() for rows in kept_session.rows("counted"))
    assert max(sizes) <= 3 * 20 + 10, sizes  # at most the passes since the last version
    # Each version replaces the one before; the sums of all passes are there.
    assert len(list((tmp_path / "checkpoint.zarr").glob("state-*"))) == 1
    assert len(list((tmp_path / "checkpoint.zarr").glob("steps-*"))) == 20


def test_nested_sums_are_packed_and_unpacked_unchanged() -> None:
    sums = FusedSums([Ones(np.asarray(3.0)), FusedSums([Ones(np.arange(4.0))])])
    arrays: list[NDArray[Any]] = []
    packed, count = pack(sums, arrays.append)
    assert count == len(arrays) == 2
    found = unpack(json.loads(json.dumps(packed)), arrays)
    assert found.parts[0].count == 3
    assert np.array_equal(found.parts[1].parts[0].count, np.arange(4.0))


@pytest.mark.faults
def test_a_record_of_which_only_the_folder_exists_is_ignored(tmp_path: Path) -> None:
    path, X = tmp_path / "checkpoint.zarr", planted_answers(300, 30, 3, 0, 0.1)
    with pytest.raises(InterruptionError):
        kept(path, callbacks=[interrupted(7)]).fit(X)
    reached = resume_point(path)
    incomplete = [path / "state-000099-killed", path / "steps-000099-killed"]
    for folder in incomplete:
        folder.mkdir()
    assert resume_point(path) == reached > 0
    same(kept(path).fit(X), kept(path).set_params(checkpoint=None).fit(X))
    assert not any(folder.exists() for folder in incomplete)


@pytest.mark.faults
def test_a_process_killed_at_the_start_leaves_a_usable_checkpoint(tmp_path: Path) -> None:
    path, X = tmp_path / "checkpoint.zarr", planted_answers(300, 30, 3, 0, 0.1)
    path.mkdir()
    (path / "zarr.0123.partial").write_bytes(b"{")  # of the group itself
    with pytest.raises(InterruptionError):
        kept(path, callbacks=[interrupted(7)]).fit(X)
    (path / "zarr.4567.partial").write_bytes(b"{")  # of the owner that it has behind that
    assert resume_point(path) > 0
    same(kept(path).fit(X), kept(path).set_params(checkpoint=None).fit(X))


def test_a_start_given_as_a_table_is_identified_by_all_its_numbers(tmp_path: Path) -> None:
    X, H = planted_answers(300, 80, 3, 0, 0.1), pd.DataFrame(np.random.default_rng(0).random((3, 80)))
    kept(tmp_path / "checkpoint.zarr", init=H).fit(X)
    H.iloc[1, 40] += 1  # in the middle, which a table does not show
    with pytest.raises(ParameterError, match="init is"):
        kept(tmp_path / "checkpoint.zarr", init=H).fit(X)


def test_fits_that_start_at_the_same_time_with_one_checkpoint(tmp_path: Path) -> None:
    X = planted_answers(300, 30, 3, 0, 0.1)
    with ThreadPoolExecutor(4) as pool:
        fits = [pool.submit(kept(tmp_path / "checkpoint.zarr").fit, X) for _ in range(4)]
    errors = [fit.exception() for fit in fits]
    assert all(error is None or isinstance(error, StoreError) for error in errors), errors


def test_a_precision_may_be_given_as_a_class(tmp_path: Path) -> None:
    X = planted_answers(60, 10, 2, 0)
    settings: dict[str, Any] = {"n_components": 2, "max_iter": 3, "checkpoint": tmp_path / "c.zarr"}
    assert dfact.ICQF(dtype=np.float32, **settings).fit(X).factors_.dtype == np.float32
    with pytest.raises(ParameterError, match="belongs to another fit: dtype"):
        dfact.ICQF(dtype=np.float64, **settings).fit(X)
