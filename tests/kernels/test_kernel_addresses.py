"""A kernel's bits do not depend on where its arguments lie in memory."""

import importlib
import pkgutil
import sys
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dfact.kernels
import dfact.models
from dfact.kernels.adamax import adamax_updates
from dfact.models.bounded_nmf import problem as bounded_nmf_problem
from tests.cases import installed
from tests.conftest import planted_answers
from tests.engine.test_checkpoint import CASES, memberships, skewed, tensor

_CALLS = 4  # kept of each kernel and kind of arguments
_PLACES = 50  # where each call is repeated


def kernels() -> dict[str, Any]:
    """All compiled functions of the package."""
    modules = [importlib.import_module(f"dfact.kernels.{m.name}") for m in pkgutil.iter_modules(dfact.kernels.__path__)]
    modules += [importlib.import_module("dfact.genetics.kernels")] if installed("genetics") else []
    return {f"{module.__name__}.{name}": value for module in modules for name, value in vars(module).items() if hasattr(value, "py_func")}


class Recorder:
    """Stands for a kernel where Python calls it, and keeps copies of the arguments of some calls."""

    def __init__(self, kernel: Any, rng: np.random.Generator) -> None:
        self.kernel, self._rng = kernel, rng
        self.kept: dict[Any, list[tuple[Any, ...]]] = defaultdict(list)
        self._seen: dict[Any, int] = defaultdict(int)

    def __call__(self, *arguments: Any) -> Any:
        kind = tuple((a.dtype, *(min(size, 2) for size in a.shape)) if isinstance(a, np.ndarray) else type(a) for a in arguments)
        self._seen[kind] += 1
        position, kept = self._rng.integers(self._seen[kind]), self.kept[kind]
        if position < _CALLS:
            copies = tuple(like(a, np.copy(a)) if isinstance(a, np.ndarray) else a for a in arguments)
            kept[position:] = [copies, *kept[position + 1 :]]
        return self.kernel(*arguments)


def like(array: NDArray[Any], copy: NDArray[Any]) -> NDArray[Any]:
    """The copy, read-only if the array is: Numba compiles a kernel for each kind."""
    copy.flags.writeable = array.flags.writeable
    return copy


def placed(arguments: tuple[Any, ...], pool: NDArray[np.uint8], rng: np.random.Generator) -> list[Any]:
    """The arguments, with arrays one behind another, in any order and with up to 64 bytes between them."""
    out, offset = list(arguments), int(-pool.ctypes.data % 64)
    for i in rng.permutation(len(out)):
        if isinstance(out[i], np.ndarray):
            offset += 8 * int(rng.integers(9))
            order = "C" if out[i].flags.c_contiguous else "F"
            view = pool[offset : offset + out[i].nbytes].view(out[i].dtype).reshape(out[i].shape, order=order)
            view[...] = out[i]
            out[i], offset = like(out[i], view), offset + -(-out[i].nbytes // 8) * 8
    return out


def bits(value: Any) -> Any:
    return tuple(bits(part) for part in value) if isinstance(value, (list, tuple)) else np.asarray(value).tobytes()


def check(kernel: Any, call: tuple[Any, ...], rng: np.random.Generator) -> None:
    """Results are bit-identical wherever the arguments lie."""
    pool, found = np.zeros(1 << 23, np.uint8), set()
    for _ in range(_PLACES):
        arguments = placed(call, pool, rng)
        found.add((bits(kernel(*arguments)), bits([a for a in arguments if isinstance(a, np.ndarray)])))
    assert len(found) == 1, f"{kernel} gives {len(found)} results for the same arguments"


FITS = {name: (case.make, case.data) for name, case in CASES.items() if name not in {"icqf-random", "emf-random"}} | {
    "icqf-fista": (lambda: dfact.ICQF(4, max_iter=6, subproblem_solver="fista"), lambda seed: planted_answers(300, 40, 4, seed, 0.1)),
    "icqf-float32": (lambda: dfact.ICQF(4, max_iter=6), lambda seed: planted_answers(300, 40, 4, seed, 0.1).astype(np.float32)),
    "nmf-float32": (lambda: dfact.NMF(4, max_iter=6), lambda seed: planted_answers(300, 40, 4, seed).astype(np.float32)),
    "emf-float32": (lambda: dfact.ExpectileMF(5, ridge=0.1, max_iter=6, tol=0), lambda seed: skewed(seed).astype(np.float32)),
    "gom-float32": (lambda: dfact.GradeOfMembership(3), lambda seed: memberships(seed).astype(np.float32)),
    "admixture-float32": (lambda: dfact.Admixture(3, ploidy=4, max_iter=6), lambda seed: memberships(seed).astype(np.float32)),
    "admixture-genotypes": (lambda: dfact.Admixture(3, max_iter=6), lambda seed: np.minimum(memberships(seed), 2).astype(np.float32)),
    "cp-float32": (lambda: dfact.ElasticCP(4, lam=0.5, max_iter=6), lambda seed: tensor(seed).astype(np.float32)),
    "cp-stochastic-full": (lambda: dfact.ElasticCP(4, lam=0.5, max_iter=6, solver="stochastic"), lambda seed: tensor(seed, 0.0)),
    "cp-als": (lambda: dfact.CPALS(3, max_iter=6), tensor),
}


@pytest.mark.parametrize("name", FITS)
def test_bits_do_not_depend_on_the_addresses_of_arguments(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for found in pkgutil.walk_packages(dfact.models.__path__, "dfact.models."):
        importlib.import_module(found.name)  # modules of passes are otherwise imported by the first fit
    rng = np.random.default_rng(0)
    recorders = {id(kernel): Recorder(kernel, rng) for kernel in kernels().values()}
    for module in [module for name, module in list(sys.modules.items()) if name.startswith("dfact.") and ".kernels" not in name]:
        for attribute, value in list(vars(module).items()):
            if id(value) in recorders:
                monkeypatch.setattr(module, attribute, recorders[id(value)])
    for inner, kernel in bounded_nmf_problem.INNER.items():
        monkeypatch.setitem(bounded_nmf_problem.INNER, inner, recorders[id(kernel)])
    make, data = FITS[name]
    for seed in range(2):
        model = make().set_params(executor="inline")
        model.set_params(**{name: seed for name in model.get_params() if name == "random_state"}).fit(data(seed))
    calls = [(recorder.kernel, call) for recorder in recorders.values() for kept in recorder.kept.values() for call in kept]
    assert calls
    for kernel, call in calls:
        check(kernel, call, rng)


@pytest.mark.parametrize("n", [5, 12, 33, 64])
@pytest.mark.parametrize("common", [True, False])
def test_bits_of_adamax_at_its_first_steps(n: int, common: bool) -> None:
    rng, k = np.random.default_rng(n), 4
    A, U, M, Z = rng.standard_normal((4, k, n))
    G = 1 + rng.random((k * (k + 1) // 2, 1 if common else n))
    check(adamax_updates, (A, U, G, rng.random(n), 0.1, rng.random(k), False, 0.5, 3, 0.1 * M, np.zeros(k), np.abs(Z)), rng)
