"""The environments of processes: refused workers of other versions, and statements where bits may differ."""

import logging
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

import dfact
from benchmarks.faults.fits import small_partitions
from dfact.cli.info import stored_model_text
from dfact.data.sources.dask import worker_infos
from dfact.engine import environment as environment_module
from dfact.engine import session as session_module
from dfact.engine.cluster import handshake
from dfact.engine.cluster import worker_shard as shard_module
from dfact.engine.cluster import workers as workers_module
from dfact.engine.environment import (
    Environment,
    common_settings,
    current_environment,
    describe_environments,
    mixed_text,
    version_mismatch,
)
from dfact.errors import ClusterError
from dfact.storage.location import parse_location
from dfact.storage.records import RecordWriter
from tests.conftest import planted_answers
from tests.engine.test_cluster_session import (
    _attentive,  # noqa: F401  # a fixture
    two_attempts,
)

V4 = Environment(
    dfact="1.2.3",
    python="3.11",
    numpy="2.4.6",
    numba="0.68.1",
    scipy="1.17.1",
    blas="openblas 0.3.31, openblas 0.3.30",
    blas_kernels="SkylakeX",
    numba_cpu="icelake-server (aa0001)",
    numpy_simd="X86_V3 X86_V4 AVX512_ICL",
    libc="glibc 2.36",
    level="x86-64-v4",
)
V3 = replace(V4, blas_kernels="Zen", numba_cpu="znver3 (aa0002)", numpy_simd="X86_V3", level="x86-64-v3")


# One process


def test_the_environment_of_this_process_has_no_gap() -> None:
    own = current_environment()
    assert all(asdict(own).values())
    assert own.dfact == dfact.__version__
    assert own.computes_as(replace(own, level="another"))
    assert not own.computes_as(replace(own, libc="glibc 2.17"))


def test_versions_that_differ_are_named_on_both_sides() -> None:
    assert version_mismatch(asdict(V4), asdict(V3)) is None
    found = asdict(V4) | {"dfact": "1.1.0", "numba": "0.61.2"}
    assert version_mismatch(found, asdict(V4)) == "has dfact 1.1.0, Numba 0.61.2, expected dfact 1.2.3, Numba 0.68.1"
    assert version_mismatch({"dfact": "0.9"}, {"dfact": "1.0", "cobol": "85"}) == "has dfact 0.9, expected dfact 1.0"


@pytest.mark.parametrize(
    ("environments", "expected"),
    [
        ([V4, V3], {"OPENBLAS_CORETYPE": "Haswell", "NUMBA_CPU_NAME": "haswell", "NPY_DISABLE_CPU_FEATURES": "AVX512_ICL X86_V4"}),
        ([V4, V4], {"OPENBLAS_CORETYPE": "SkylakeX", "NUMBA_CPU_NAME": "skylake-avx512", "NPY_DISABLE_CPU_FEATURES": "AVX512_ICL"}),
        (
            [replace(V4, numpy_simd="AVX2 AVX512F AVX512CD AVX512_SKX"), V3],
            {"OPENBLAS_CORETYPE": "Haswell", "NUMBA_CPU_NAME": "haswell", "NPY_DISABLE_CPU_FEATURES": "AVX512CD AVX512F AVX512_SKX"},
        ),
        ([V4, replace(V4, level="aarch64")], None),
        ([V4, replace(V3, blas="mkl 2025.1")], None),
    ],
)
def test_settings_are_those_of_the_largest_common_instruction_set(environments: list[Environment], expected: Any) -> None:
    settings = common_settings(environments)
    assert settings == (None if expected is None else expected | {"NUMBA_CPU_FEATURES": ""})


def test_statement_names_the_processes_and_the_remedy() -> None:
    text = mixed_text({"the driver": V4, "worker tcp://a:1": V3})
    assert "the driver: BLAS on SkylakeX, Numba on icelake-server (aa0001)" in text
    assert "worker tcp://a:1: BLAS on Zen" in text
    assert "OPENBLAS_CORETYPE='Haswell' NUMBA_CPU_NAME='haswell' NUMBA_CPU_FEATURES=''" in text
    other_image = mixed_text({"the driver": V4, "worker tcp://a:1": replace(V3, libc="glibc 2.31")})
    assert "C library glibc 2.31" in other_image
    assert "OPENBLAS_CORETYPE" not in other_image, "no setting changes the C library"


@pytest.mark.process
@pytest.mark.skipif(platform.machine() != "x86_64", reason="settings are known for x86-64 alone")
def test_the_settings_limit_a_process_to_the_instruction_set() -> None:
    own = current_environment()
    if own.level != "x86-64-v4":
        pytest.skip(f"the processor has {own.level}, and its largest instruction set would not be limited")
    settings = common_settings([own, V3])
    assert settings is not None
    code = "from dfact.engine.environment import *; e = current_environment(); print(e.blas_kernels, e.numba_cpu, e.numpy_simd, e.level)"
    out = subprocess.run([sys.executable, "-c", code], env=os.environ | settings, capture_output=True, text=True, check=True).stdout
    assert out.split()[:2] == ["Haswell", "haswell"]
    assert "AVX512" not in out
    assert "X86_V4" not in out
    assert out.split()[-1] == own.level


# Workers that join


@contextmanager
def cluster(n_workers: int, **settings: Any) -> Iterator[tuple[LocalCluster, Client]]:
    shown: dict[str, Any] = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "memory_limit": "2GiB"}
    with (
        LocalCluster(n_workers=n_workers, processes=False, **shown, **settings) as started,
        Client(started, set_as_default=False) as client,
    ):
        client.wait_for_workers(n_workers)
        yield started, client


ANSWERS = planted_answers(800, 20, 3, seed=0, missing=0.05).astype(np.float32)


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small_partitions():
        yield


def fit(executor: Any, **parameters: Any) -> dfact.ICQF:
    return dfact.ICQF(3, executor=executor, random_state=0, max_iter=4, **parameters).fit(ANSWERS)


@pytest.fixture(scope="module")
def inline() -> dfact.ICQF:
    with small_partitions():
        return fit("inline")


def bits(model: dfact.ICQF) -> tuple[bytes, bytes]:
    return model.components_.tobytes(), np.asarray(model.factors_).tobytes()


@pytest.mark.cluster
@pytest.mark.faults
def test_a_worker_of_another_version_is_refused_by_name(
    inline: dfact.ICQF, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    current = current_environment()
    with cluster(2) as (_, client):
        victim = min(worker_infos(client))

        async def with_other_version(key: str, *size: int, dask_worker: Any, driver: Any, **settings: Any) -> dict[str, str]:
            if dask_worker.address == victim:
                fields = asdict(current) | {"dfact": "0.0.9", "numpy": "2.1.0"}
                raise ClusterError(f"it {handshake.version_mismatch(fields, driver)}")
            return await shard_module.open_shard(key, *size, dask_worker=dask_worker, driver=driver, **settings)

        monkeypatch.setattr(workers_module, "open_shard", with_other_version)
        assert bits(fit(client)) == bits(inline), "the other worker computes alone"
    [warning] = [record.getMessage() for record in caplog.records if "cannot join" in record.getMessage()]
    expected = f"has dfact 0.0.9, NumPy 2.1.0, expected dfact {current.dfact}, NumPy {current.numpy}"
    assert victim in warning
    assert expected in warning


@pytest.mark.cluster
@pytest.mark.faults
def test_without_a_worker_of_the_same_version_the_fit_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(current_environment(), dfact="9.9.9", scipy="0.1")
    with cluster(1) as (_, client), two_attempts():
        monkeypatch.setattr(workers_module, "driver_fields", lambda: asdict(other))
        with pytest.raises(
            ClusterError, match=r"no worker .*could join: \S+: it has dfact \S+, SciPy \S+, expected dfact 9.9.9, SciPy 0.1"
        ):
            fit(client)


@pytest.mark.cluster
@pytest.mark.faults
def test_a_worker_whose_dfact_does_not_know_the_handshake_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def earlier(key: str, *size: int, dask_worker: Any) -> None:
        """The function as it was before the handshake."""

    with cluster(1) as (_, client), two_attempts():
        monkeypatch.setattr(workers_module, "open_shard", earlier)
        expected = rf"its dfact is older than that of the driver and does not state its version, expected dfact {dfact.__version__}"
        with pytest.raises(ClusterError, match=expected):
            fit(client)


def test_a_driver_whose_dfact_does_not_know_the_handshake_is_refused() -> None:
    with pytest.raises(ClusterError, match=rf"it has dfact {dfact.__version__}, and the dfact of the driver is older"):
        handshake.verify_versions(None)


@pytest.mark.cluster
@pytest.mark.faults
def test_tasks_of_a_selection_refuse_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(1) as (_, client):
        monkeypatch.setattr("dfact.engine.cluster.session.driver_fields", lambda: asdict(current_environment()) | {"dfact": "9.9.9"})
        with pytest.raises(ClusterError, match=r"worker \S+ cannot run a task: it has dfact \S+, expected dfact 9.9.9"):
            session_on(client).map(identity, [1, 2], dict, lambda *_: None)


def session_on(client: Client) -> Any:
    from dfact.engine.cluster.session import DistributedExecutor

    return DistributedExecutor(client)


def identity(task: int, _: Any) -> list[int]:
    return [task]


# Processors


def other_kernels() -> str:
    """Another architecture of OpenBLAS than this machine's, whose products of float32 matrices end with other bits."""
    return "Haswell" if current_environment().blas_kernels != "Haswell" else "Sandybridge"


@contextmanager
def mixed_cluster() -> Iterator[tuple[Client, str]]:
    """A cluster of two workers, one of them a process of its own with other kernels of OpenBLAS; yields that one's address."""
    with cluster(1, protocol="tcp") as (started, client):
        first = set(worker_infos(client))
        command = [sys.executable, "-m", "distributed.cli.dask_worker", started.scheduler_address, "--no-nanny", "--nthreads", "1"]
        command += ["--dashboard-address", "127.0.0.1:0", "--memory-limit", "2GiB"]
        worker = subprocess.Popen(
            command, env=os.environ | {"OPENBLAS_CORETYPE": other_kernels()}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            client.wait_for_workers(2, timeout=200)
            [address] = worker_infos(client).keys() - first
            yield client, address
        finally:
            worker.terminate()
            worker.wait()


@pytest.mark.further
@pytest.mark.cluster
@pytest.mark.process
@pytest.mark.skipif(platform.machine() != "x86_64", reason="OpenBLAS has kernels of other processors of this kind on x86-64 alone")
def test_workers_with_other_kernels_are_stated_in_log_model_and_checkpoint(
    inline: dfact.ICQF, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def stop(iteration: Any) -> None:
        if iteration.number == 3:
            raise KeyboardInterrupt

    with mixed_cluster() as (client, address):
        model = fit(client)
        with pytest.raises(KeyboardInterrupt):
            fit(client, callbacks=[stop], checkpoint=tmp_path / "checkpoint", checkpoint_every=1)
    kernels = [each.blas_kernels for each in model.environments_]
    assert kernels == [current_environment().blas_kernels, other_kernels()]
    # Either the bits are the same on both, or it is stated; here it is, as float32 products differ.
    stated = [record for record in caplog.records if "bits may differ" in record.getMessage()]
    assert len(stated) == 2, "one for each fit"
    assert all(
        record.levelno == logging.WARNING and f"worker {address}: BLAS on {other_kernels()}" in record.getMessage() for record in stated
    )
    dfact.save_model(model, tmp_path / "mixed.model")
    assert f"BLAS on {other_kernels()}: bits may differ" in stored_model_text(parse_location(tmp_path / "mixed.model"), 2)
    assert dfact.load_model(tmp_path / "mixed.model").environments_ == model.environments_
    # The checkpoint knows it too: a fit that resumes on one machine states it, and so does its model.
    caplog.clear()
    resumed = fit("inline", checkpoint=tmp_path / "checkpoint")
    assert resumed.environments_ == model.environments_
    [record] = caplog.records
    assert "processes that compute differently from this one" in record.getMessage()
    np.testing.assert_allclose(resumed.components_, inline.components_, rtol=1e-3, atol=1e-4)


@pytest.mark.cluster
def test_processes_of_one_kind_are_not_stated(inline: dfact.ICQF, caplog: pytest.LogCaptureFixture) -> None:
    with cluster(2) as (_, client):
        model = fit(client)
    assert model.environments_ == inline.environments_ == (current_environment(),)
    assert bits(model) == bits(inline)
    assert not [record for record in caplog.records if "bits may differ" in record.getMessage()]


# Resumes


def stopped_fit(checkpoint: Path) -> None:
    def stop(iteration: Any) -> None:
        if iteration.number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit("inline", callbacks=[stop], checkpoint=checkpoint, checkpoint_every=1)


@pytest.mark.parametrize("change", [{"numpy": "2.2.0"}, {"blas_kernels": "Zen"}], ids=["version", "processor"])
def test_a_resume_elsewhere_is_stated(
    change: dict[str, str], inline: dfact.ICQF, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = replace(current_environment(), **change)
    with monkeypatch.context() as patch:
        patch.setattr(session_module, "current_environment", lambda: other)
        stopped_fit(tmp_path / "checkpoint")
    model = fit("inline", checkpoint=tmp_path / "checkpoint")
    assert bits(model) == bits(inline), "they were the same in truth"
    assert model.environments_ == (other, current_environment())
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert f"{tmp_path / 'checkpoint'} was written by processes that compute differently" in record.getMessage()
    assert describe_environments(model.environments_) in record.getMessage()
    assert next(iter(change.values())) in record.getMessage()


def test_a_checkpoint_without_environments_resumes(inline: dfact.ICQF, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints had none before they were recorded."""
    finish = RecordWriter.finish

    def without(writer: RecordWriter, **attributes: Any) -> None:
        attributes.pop("environments", None)
        finish(writer, **attributes)

    with monkeypatch.context() as patch:
        patch.setattr(RecordWriter, "finish", without)
        stopped_fit(tmp_path / "checkpoint")
    model = fit("inline", checkpoint=tmp_path / "checkpoint")
    assert bits(model) == bits(inline)
    assert model.environments_ == (current_environment(),)


@pytest.mark.cluster
def test_results_of_a_selection_from_elsewhere_are_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They describe the workers that computed the results, not the driver that stores them."""
    from dfact.selection.running.results_store import ResultsStore

    def stored() -> ResultsStore:
        return ResultsStore(tmp_path / "results", {"seed": 1})

    def found_elsewhere(driver: dict[str, str]) -> dict[str, dict[str, str]]:
        return {"tcp://elsewhere:1": driver | {"libc": "musl 1.2"}}

    store = stored()
    with monkeypatch.context() as patch, cluster(1) as (_, client):
        patch.setattr("dfact.engine.cluster.handshake.verify_versions_in_task", found_elsewhere)
        session_on(client).map(identity, [0, 1], dict, lambda task, _: store.add((task,), [np.ones(3)]))
    store.add((2,), [np.ones(3)])
    caplog.clear()
    assert stored().entries.keys() == {(0,), (1,), (2,)}
    assert ["C library musl 1.2" in record.getMessage() for record in caplog.records] == [True]


def test_a_resume_in_the_same_environment_says_nothing(inline: dfact.ICQF, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stopped_fit(tmp_path / "checkpoint")
    assert bits(fit("inline", checkpoint=tmp_path / "checkpoint")) == bits(inline)
    assert not caplog.records


def test_environments_with_other_fields_are_left_out() -> None:
    stored = [asdict(V4), asdict(V3) | {"quantum": "yes"}, {"dfact": "0.1.0"}]
    assert environment_module.environments_from(stored) == [V4]
