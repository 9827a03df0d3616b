"""The environment of a process: versions and instruction sets, on which the bits of its results depend."""

import hashlib
import logging
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

import numpy as np
import scipy.linalg.cython_blas  # noqa: F401  # kernels call SciPy's BLAS, which must be loaded to be described
from threadpoolctl import ThreadpoolController

from dfact.internals.numba import compiler_target, host_features

logger = logging.getLogger("dfact.engine")
VERSIONS = {"dfact": "dfact", "python": "Python", "numpy": "NumPy", "numba": "Numba", "scipy": "SciPy", "blas": "BLAS"}
"""Fields of an :class:`Environment` that processes of one fit must have in common, with their names."""
ARITHMETIC = {"blas_kernels": "BLAS on", "numba_cpu": "Numba on", "numpy_simd": "NumPy on", "libc": "C library"}
"""Fields on which only the last digits depend, with their names."""
_FLOATING = re.compile(r"avx|sse|ssse|fma|f16c|xop|amx|neon|sve|sme|fp16|bf16|fullfp16|dotprod|evex|prefer")
"""Features of a processor that change the code of floating-point loops."""
_LEVELS = {
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "x86-64-v3": {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"},
}
"""Instruction sets, the largest first, with the features that each adds to the next."""
_SETTINGS = {
    "x86-64-v4": {"OPENBLAS_CORETYPE": "SkylakeX", "NUMBA_CPU_NAME": "skylake-avx512", "NUMBA_CPU_FEATURES": ""},
    "x86-64-v3": {"OPENBLAS_CORETYPE": "Haswell", "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": ""},
}
"""Variables that limit OpenBLAS and Numba to an instruction set."""
_SIMD_V4 = ("X86_V4", "AVX512F", "AVX512CD", "AVX512_SKX")
"""NumPy's names of the features of x86-64-v4; later ones begin with AVX512_ too."""


@dataclass(frozen=True)
class Environment:
    """Whatever determines the bits of a result besides data and parameters."""

    dfact: str
    python: str
    """Feature release, such as 3.13."""
    numpy: str
    numba: str
    scipy: str
    blas: str
    """Names and versions of the BLAS libraries of NumPy and SciPy."""
    blas_kernels: str
    """Architectures for which they compute, such as Haswell."""
    numba_cpu: str
    """Processor for which Numba compiles, with a digest of its features for floating-point numbers."""
    numpy_simd: str
    """Instruction sets that NumPy uses in addition to those of its build."""
    libc: str
    level: str
    """Largest instruction set of the processor; not compared, as processes may be limited to a smaller one."""

    @property
    def arithmetic(self) -> str:
        """The fields on which the last digits depend, as text."""
        return ", ".join(f"{name} {getattr(self, key)}" for key, name in ARITHMETIC.items())

    @property
    def _compared(self) -> tuple[str, ...]:
        return tuple(getattr(self, key) for key in (*VERSIONS, *ARITHMETIC))

    def computes_as(self, other: "Environment") -> bool:
        """Return whether both give bit-identical results."""
        return self._compared == other._compared


@cache
def current_environment() -> Environment:
    """Return the environment of this process, which stays the same until its end."""
    libraries = sorted(filter(_is_own, ThreadpoolController().select(user_api="blas").info()), key=lambda each: each["filepath"])
    cpu, features = compiler_target()
    floating = sorted(feature for feature in features if _FLOATING.match(feature))
    digest = hashlib.blake2b(" ".join(floating).encode(), digest_size=3).hexdigest()
    simd = np.show_config(mode="dicts")["SIMD Extensions"]
    return Environment(
        dfact=version("dfact"),
        python=".".join(platform.python_version_tuple()[:2]),
        numpy=np.__version__,
        numba=version("numba"),
        scipy=version("scipy"),
        blas=", ".join(f"{each['internal_api']} {each['version']}" for each in libraries),
        blas_kernels=" and ".join(dict.fromkeys(str(each.get("architecture")) for each in libraries)),
        numba_cpu=f"{cpu} ({digest})" if floating else cpu,
        numpy_simd=" ".join(simd.get("found") or ["baseline"]),
        libc=" ".join(platform.libc_ver()).strip() or "unknown",
        level=next((level for level, needed in _LEVELS.items() if needed <= host_features()), platform.machine()),
    )


_result_environments: "ContextVar[Callable[[], Sequence[Environment]]]" = ContextVar("_result_environments")


@contextmanager
def computed_in(environments: Callable[[], Sequence[Environment]]) -> Iterator[None]:
    """Let :func:`result_environments` return these, for results that reach this process from others."""
    token = _result_environments.set(environments)
    try:
        yield
    finally:
        _result_environments.reset(token)


def result_environments() -> Sequence[Environment]:
    """Return the environments that computed the results which this process receives, by default its own."""
    return _result_environments.get(lambda: [current_environment()])()


def _is_own(library: Mapping[str, str]) -> bool:
    """Return whether a BLAS library belongs to NumPy or SciPy: other packages, such as PyTorch, may load libraries of their own."""
    folder, packages = Path(library["filepath"]).parent, Path(np.__file__).parents[1]
    return folder.name in ("numpy.libs", "scipy.libs", ".dylibs") or not folder.is_relative_to(packages)


def environments_from(stored: Iterable[Mapping[str, str]]) -> list[Environment]:
    """Return environments that were stored as mappings, without those of versions with other fields."""
    names = Environment.__dataclass_fields__.keys()
    return [Environment(**fields) for fields in stored if fields.keys() == names]


def version_mismatch(found: Mapping[str, str], expected: Mapping[str, str]) -> str | None:
    """Return in words how the versions of a process differ from those expected; None if they are the same."""
    names = [key for key in VERSIONS if found.get(key) != expected.get(key)]
    if not names:
        return None
    texts = [", ".join(f"{VERSIONS[key]} {side.get(key, 'unknown')}" for key in names) for side in (found, expected)]
    return f"has {texts[0]}, expected {texts[1]}"


def as_fields(environment: Environment) -> dict[str, str]:
    """Return an environment as a mapping."""
    return asdict(environment)


def distinct(environments: Iterable[Environment]) -> list[Environment]:
    """Return the environments that compute differently, each once, in their order."""
    kinds: list[Environment] = []
    for environment in environments:
        if not any(environment.computes_as(kind) for kind in kinds):
            kinds.append(environment)
    return kinds


def warn_changed(what: str, earlier: Sequence[Environment]) -> None:
    """Log that bits may differ if the environments in which something was written compute differently from this process."""
    if len(kinds := distinct([*earlier, current_environment()])) > 1:
        logger.warning("%s was written by processes that compute differently from this one (%s)", what, describe_environments(kinds))


def mixed_text(named: Mapping[str, Environment]) -> str:
    """State that bits may differ between environments, by the names of their processes, and which settings make them the same."""
    processes = "; ".join(f"{name}: {environment.arithmetic}" for name, environment in named.items())
    cause = f"bits may differ between runs, because processes compute with different instructions ({processes})"
    return f"{cause}; {_remedy(list(named.values()))}"


def _remedy(environments: Sequence[Environment]) -> str:
    settings = common_settings(environments)
    if settings is None or len({environment.libc for environment in environments}) > 1:
        return "to get bit-identical results, use identical machines and images"
    return "to get bit-identical results, start all processes with " + " ".join(f"{name}='{value}'" for name, value in settings.items())


def common_settings(environments: Sequence[Environment]) -> dict[str, str] | None:
    """Return the environment variables that limit all processes to the largest instruction set that their processors have in common.

    None if there is no such set, or a BLAS other than OpenBLAS.
    """
    levels = list(_LEVELS)
    if any(each.level not in levels or "openblas" not in each.blas for each in environments):
        return None
    level = levels[max(levels.index(each.level) for each in environments)]
    found = {name for each in environments for name in each.numpy_simd.split()}
    beyond = {name for name in found if name.startswith("AVX512_") and name not in _SIMD_V4}
    disabled = beyond if level == "x86-64-v4" else beyond | found.intersection(_SIMD_V4)
    return _SETTINGS[level] | ({"NPY_DISABLE_CPU_FEATURES": " ".join(sorted(disabled))} if disabled else {})


def describe_environments(environments: Sequence[Environment]) -> str:
    """Describe where a result was computed; state if its bits may differ from those of a single kind of process."""
    if len(environments) == 1:
        return environments[0].arithmetic
    keys = [key for key in (*VERSIONS, *ARITHMETIC) if len({getattr(each, key) for each in environments}) > 1]
    names = VERSIONS | ARITHMETIC
    kinds = "; ".join(", ".join(f"{names[key]} {getattr(each, key)}" for key in keys) for each in environments)
    return f"{kinds}: bits may differ from those of identical processes"
