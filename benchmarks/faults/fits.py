"""Fits of every solver for fault injection: small data in several partitions, long enough to be hit in the middle."""

import asyncio
import itertools
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import dask
import numpy as np
import zarr
from distributed import Client, Scheduler, Worker
from numpy.typing import NDArray

import dfact
from benchmarks.common import listens, wait_until
from dfact.data.layout import cut_into
from dfact.data.synthetic import PlantedQuestionnaire
from dfact.engine import shard

Array = NDArray[Any]
PATIENCE = 900.0
"""Seconds without progress after which a process hangs: on a busy machine the imports alone take minutes."""


@contextmanager
def small_partitions() -> Iterator[None]:
    """Make partitions so small that data fitted in a second has five of them."""
    with cut_into(block_entries=1 << 11, chunk_entries=1 << 13, partition_entries=1 << 14):
        yield


def slow(seconds: float) -> None:
    """Slow down every partition of a pass in this process, or every group of partitions of a tiled one."""
    walk: Callable[..., Any] = shard.reduce_blocks
    accumulate: Callable[..., Any] = shard.Shard._accumulate

    def slow_walk(blocks: Any, request: Any, states: Any, on_state: Any, total: Any) -> Any:
        time.sleep(seconds if total is None else 0)
        return walk(blocks, request, states, on_state, total)

    def slow_accumulate(*arguments: Any) -> Any:
        time.sleep(seconds)
        return accumulate(*arguments)

    shard.reduce_blocks = slow_walk
    shard.Shard._accumulate = slow_accumulate  # type: ignore[method-assign]  # for the whole process


def answers(seed: int) -> Array:
    """Return answers 0..3, NaN where missing."""
    planted = PlantedQuestionnaire(2000, 40, 4, seed=seed)
    codes = np.concatenate(list(planted.chunks(2000)))
    return np.where(codes == planted.MISSING_CODE, np.float32(np.nan), codes.astype(np.float32))


def memberships(seed: int) -> Array:
    """Return responses 0..4 of mixed members of three classes."""
    rng = np.random.default_rng(seed)
    shares = np.vstack([np.eye(3)[rng.integers(0, 3, 1500)], rng.dirichlet([1, 1, 1], 500)])
    return rng.binomial(4, shares @ rng.random((3, 40))).astype(np.float64)


def skewed(seed: int) -> Array:
    """Return measurements with skewed noise, half of them missing."""
    rng = np.random.default_rng(seed)
    X = rng.random((1200, 3)) @ rng.random((3, 60)) + 0.05 * rng.chisquare(3, (1200, 60))
    X[rng.random(X.shape) < 0.5] = np.nan
    return X


def tensor(seed: int) -> Array:
    """Return a tensor of three modes, a tenth missing."""
    rng = np.random.default_rng(seed)
    X = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((size, 3)) for size in (700, 12, 8))) + 0.1 * rng.standard_normal((700, 12, 8))
    X[rng.random(X.shape) < 0.1] = np.nan
    return X


@dataclass(frozen=True)
class Solver:
    """A model, its data, and the iterations after which more passes follow."""

    model: Callable[..., Any]
    data: Callable[[int], Array]
    parameters: dict[str, Any] = field(default_factory=lambda: {"max_iter": 8, "tol": 0})
    last: int = 7

    def make(self, **settings: Any) -> Any:
        model = self.model(3, **self.parameters, **settings)
        return model.set_params(random_state=0) if "random_state" in model.get_params() else model


def _public(name: str, *given: Any, **settings: Any) -> Any:
    """Return a model of a slice, which need not be installed until it is made."""
    return getattr(dfact, name)(*given, **settings)


_ITERATES = {"max_iter": 8, "tol": 0}
_RANDOM_START = _ITERATES | {"init": "random"}  # no passes over a sample before the first iteration
_EXPECTILE = _ITERATES | {"tau": 0.2, "ridge": 0.1}
SOLVERS = {
    "ICQF mm": Solver(dfact.ICQF, answers, _RANDOM_START | {"solver": "mm"}),
    "ICQF admm": Solver(dfact.ICQF, answers, _RANDOM_START | {"solver": "admm"}),
    "NMF": Solver(dfact.NMF, answers, _RANDOM_START),
    "GradeOfMembership crsc": Solver(dfact.GradeOfMembership, memberships, {"method": "crsc"}, last=4),
    "Admixture": Solver(partial(_public, "Admixture"), memberships, _ITERATES | {"ploidy": 4}),
    "PCA": Solver(dfact.PCA, skewed),
    "ExpectileMF exact": Solver(dfact.ExpectileMF, skewed, _EXPECTILE | {"solver": "exact"}),
    "ExpectileMF surrogate": Solver(dfact.ExpectileMF, skewed, _EXPECTILE | {"solver": "surrogate"}),
    "ElasticCP bcd, fill": Solver(dfact.ElasticCP, tensor, _ITERATES | {"lam": 0.5, "missing": "fill"}),
    "ElasticCP stochastic": Solver(dfact.ElasticCP, tensor, _ITERATES | {"lam": 0.5, "solver": "stochastic"}),
}


def long_fit(**settings: Any) -> dfact.ICQF:
    """Return the model for faults that are not tried with all solvers."""
    return dfact.ICQF(3, max_iter=20, tol=0, **settings)


def block_selection(**settings: Any) -> Callable[..., Any]:
    """Return a function that runs block cross-validation of ICQF."""

    def run(executor: Any, callbacks: Any = ()) -> Any:
        model = dfact.ICQF(max_iter=6, init="random", random_state=0, executor=executor)
        grid = {"n_components": [2, 3]}
        return dfact.selection.block_cross_validate(
            model, answers(0), grid, n_blocks=(3, 3), n_folds=3, random_state=0, callbacks=callbacks, **settings
        )

    return run


def held_out_selection(executor: Any, callbacks: Any = ()) -> Any:
    """Select an expectile factorization by held-out entries."""
    model = dfact.ExpectileMF(max_iter=6, ridge=0.1, executor=executor)
    grid = {"n_components": [2, 3]}
    return dfact.selection.select_by_held_out(model, skewed(0), grid, random_state=0, callbacks=callbacks)


def bootstrap(executor: Any, callbacks: Any = ()) -> Any:
    """Compute the stability of an ICQF by refits of a few passes."""
    model = dfact.ICQF(3, max_iter=8, tol=0, init="random", random_state=0).fit(answers(0)).set_params(executor=executor)
    found = dfact.selection.bootstrap(model, answers(0), 4, warm_start=False, random_state=0, callbacks=callbacks)
    return SimpleNamespace(stability_=found)


SELECTIONS: dict[str, Callable[..., Any]] = {
    "block_cross_validate, in memory": block_selection(in_memory=True),
    "block_cross_validate, shared reads": block_selection(in_memory=False),
    "select_by_held_out": held_out_selection,
    "bootstrap": bootstrap,
}


def bits(model: Any) -> dict[str, bytes]:
    """Return all numbers and names of a fitted model as bytes."""
    if hasattr(model, "best_params"):
        table = model.table.drop(columns=["seconds"], errors="ignore")
        return bits(model.model) | {"table": table.to_csv().encode(), "best": repr(model.best_params).encode()}
    found = {name: value for name, value in vars(model).items() if name.endswith("_") and not name.startswith("_")}
    if "stability_" in found:
        found |= {f"stability {name}": value for name, value in vars(found["stability_"]).items()}
    return {name: _bytes(value) for name, value in found.items() if isinstance(value, (np.ndarray, zarr.Array, list, float, int, str))}


def _bytes(value: Any) -> bytes:
    if isinstance(value, list):
        return b"".join(map(_bytes, value))
    array = np.asarray(value)
    return repr(array.tolist()).encode() if array.dtype.kind in "OUT" else array.tobytes()


def differing(one: dict[str, bytes], other: dict[str, bytes]) -> int:
    """Return the number of bytes in which two results differ."""
    count = 0
    for name in one.keys() | other.keys():
        a, b = one.get(name, b""), other.get(name, b"")
        count += abs(len(a) - len(b)) + sum(x != y for x, y in zip(a, b, strict=False))
    return count


class Strike:
    """A callback that acts once, a number of seconds after a certain iteration, while the fit continues.

    The next iteration waits for the action, so that the fit does not end before it.
    """

    def __init__(self, iteration: int, seconds: float, act: Callable[[], Any]) -> None:
        self._iteration, self._act = iteration, act
        self._timer = threading.Timer(seconds, self._do)
        self._due, self._begun = False, threading.Event()

    def __call__(self, iteration: Any) -> None:
        if self._due:
            self._begun.wait()
        elif iteration.number >= self._iteration:
            self._due = True
            self._timer.start()

    def _do(self) -> None:
        self._begun.set()
        self._act()

    def done(self) -> bool:
        """Return whether the action has run; prevent it from running later."""
        done = self._begun.is_set()
        self._timer.cancel()
        if self._due:
            self._timer.join()
        return done


def joined(client: Client, n_workers: int, behind: int) -> Callable[[Any], None]:
    """Return a callback that waits after a certain iteration until the cluster has this number of workers."""

    def wait(iteration: Any) -> None:
        if iteration.number == behind:
            client.wait_for_workers(n_workers, timeout=PATIENCE)

    return wait


def partitions_by_worker(client: Client) -> dict[str, int]:
    """Return the number of partitions that each worker has run."""

    async def processed(dask_worker: Any) -> int:
        return int((await dask_worker.get_metrics()).get("dfact partitions", 0))

    found: dict[str, int] = client.run(processed)
    return found


FORKSERVER = multiprocessing.get_context("forkserver")  # the fork server imports once, so that new processes start fast
FORKSERVER.set_forkserver_preload(
    [
        "distributed",
        "dfact",
        "dfact.models.estimator",
        "dfact.selection",
        "dfact.export.files",
        "dfact.report.write",
        "dfact.cli.main",
        "benchmarks.faults.fork_server",
    ]
)


@contextmanager
def forked_workers() -> Iterator[None]:
    """Let Dask fork the workers of a ``LocalCluster`` from the fork server, which has imported dfact.

    Dask would start a fork server of its own, which has not, and a process has only one: it would serve all later processes, too.
    """
    forkserver.ensure_running()
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        yield


def in_forked_process(module: str, function: str, arguments: str) -> str:
    """Call ``module.function`` in a process forked from the fork server; arguments and result are JSON."""
    receiver, sender = FORKSERVER.Pipe(duplex=False)
    process = FORKSERVER.Process(target=_answer, args=(sender, module, function, arguments))
    process.start()
    sender.close()
    try:
        return str(receiver.recv())  # EOFError if it has failed
    finally:
        process.join()
        receiver.close()


def _answer(sender: Any, module: str, function: str, arguments: str) -> None:
    sender.send(json.dumps(getattr(import_module(module), function)(*json.loads(arguments))))


def log_to(path: Path) -> None:
    """Redirect the output of this process to a file."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)


class Processes:
    """A Dask scheduler and workers without nannies on loopback, each in its own process; they end with the ``with`` block.

    They take the settings of Dask and the environment at their start, then the given settings, and log to the folder.
    """

    def __init__(self, folder: Path, settings: dict[str, Any] | None = None, pause: float = 0) -> None:
        self._folder, self._settings, self.pause = str(folder), settings or {}, pause
        from tests.conftest import free_port  # imports pytest, which the forked processes do not need

        self._port = free_port()
        self.address = f"tcp://127.0.0.1:{self._port}"
        self.running: dict[str, Any] = {}
        self.stopped: set[str] = set()
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill(*self.running)

    def start(self, n_workers: int) -> None:
        """Start a scheduler, at the same address each time, and workers up to this number."""
        if "scheduler" not in self.running:
            self._start("scheduler", _schedule, self._port)
            wait_until(lambda: listens(self._port), "the scheduler listens", PATIENCE)
        while len(self.workers) < n_workers:
            self.start_worker()

    def start_worker(self) -> str:
        """Start another worker; return its name."""
        name = f"worker-{next(self._numbers)}"
        self._start(name, _work, self.address, name, self.pause)
        return name

    def _start(self, name: str, target: Callable[..., None], *arguments: Any) -> None:
        # The fork server has the settings and the environment of its own start.
        given = self._folder, {"config": {**dask.config.config, **self._settings}, "environment": dict(os.environ)}
        self.running[name] = FORKSERVER.Process(target=target, args=(*given, *arguments), daemon=True)
        self.running[name].start()

    @property
    def workers(self) -> list[str]:
        return [name for name in self.running if name != "scheduler"]

    def send(self, number: signal.Signals, name: str) -> None:
        os.kill(self.running[name].pid, number)
        (self.stopped.add if number == signal.SIGSTOP else self.stopped.discard)(name)

    def kill(self, *names: str) -> None:
        for name in set(names):
            self.stopped.discard(name)
            process = self.running.pop(name)
            process.kill()
            process.join()


def _serve(server: Callable[[], Any], folder: str, settings: dict[str, Any], name: str) -> None:
    """Run a scheduler or a worker in a new process until it is closed."""
    log_to(Path(folder) / f"{name}.log")
    os.environ.clear()
    os.environ.update(settings["environment"])

    async def serve() -> None:
        async with server() as running:
            await running.finished()

    with dask.config.set(settings["config"]):
        asyncio.run(serve())


def _schedule(folder: str, settings: dict[str, Any], port: int) -> None:
    _serve(lambda: Scheduler(host="127.0.0.1", port=port, dashboard_address="127.0.0.1:0"), folder, settings, "scheduler")


def _work(folder: str, settings: dict[str, Any], address: str, name: str, pause: float) -> None:
    slow(pause)
    own = {"name": name, "nthreads": 1, "local_directory": folder, "memory_limit": "2GiB", "death_timeout": 200}
    with small_partitions():
        _serve(lambda: Worker(address, host="127.0.0.1", dashboard_address="127.0.0.1:0", **own), folder, settings, name)
