"""Metrics of fits in this process, and the server that Prometheus reads them from."""

import logging
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import dask
import pytest
from prometheus_client.parser import text_string_to_metric_families

import dfact
from dfact import progress
from dfact.cli.main import main
from dfact.errors import DfactError, ParameterError
from dfact.monitoring import metrics
from dfact.monitoring.logs import configure_logging
from dfact.monitoring.metrics import serve_metrics
from dfact.progress import Iteration
from dfact.settings import run_id, use_run_id
from tests.conftest import planted_answers

N, M = 2000, 20


def scraped(url: str) -> dict[str, float]:
    with urlopen(url, timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {sample.name: sample.value for family in families for sample in family.samples}


def fit(on_iteration: Callable[[Iteration], None] = lambda _: None, **settings: Any) -> dfact.ICQF:
    model = dfact.ICQF(3, max_iter=4, tol=0, init="random", random_state=0, callbacks=[on_iteration], **settings)
    return model.fit(planted_answers(N, M, 3, seed=0))


def grown(before: dict[str, float], name: str) -> float:
    return metrics.values()[name] - before[name]


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_a_fit_counts_its_passes_partitions_and_rows(executor: str) -> None:
    before, seen = metrics.values(), list[dict[str, float]]()
    fit(lambda _: seen.append(metrics.values()), executor=executor)
    passes = grown(before, "fit_passes")
    assert passes == grown(before, "passes") > 4
    full_passes = grown(before, "rows") / N
    assert 4 <= full_passes <= passes  # a sampled pass has fewer rows
    assert [each["iteration"] for each in seen[-4:]] == [1, 2, 3, 4]
    assert {each["fits"] for each in seen} == {1}
    assert seen[-1]["objective"] < seen[-4]["objective"]
    assert "estimated_end_timestamp_seconds" in seen[-1]
    after = metrics.values()
    assert after["fits"] == 0
    assert not {"iteration", "objective", "estimated_end_timestamp_seconds"} & after.keys()


def test_spilled_state_checkpoints_and_stores_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dfact.engine import executors

    class Spilling(executors.LocalSession):
        def __init__(self, partitions: Any, plan: Any, threads: int) -> None:
            super().__init__(partitions, plan, threads)
            self._shard._states._free = 0

    monkeypatch.setattr(executors, "LocalSession", Spilling)
    before = metrics.values()
    model = fit(executor="inline", checkpoint=tmp_path / "fit.checkpoint", checkpoint_every=2)
    assert grown(before, "checkpoints") >= 2
    assert grown(before, "spilled_bytes") >= 4 * model.factors_.nbytes  # in each iteration
    stored = sum(path.stat().st_size for path in (tmp_path / "fit.checkpoint").rglob("*") if path.is_file())
    assert grown(before, "store_written_bytes") >= stored  # earlier versions are removed
    assert metrics.values().get("checkpoint_timestamp_seconds") is None  # of a running fit
    before = metrics.values()
    fit(executor="inline", checkpoint=tmp_path / "fit.checkpoint", checkpoint_every=2)
    assert grown(before, "store_read_bytes") > 0.5 * stored


def test_the_estimated_end_forgets_steps_that_a_resumed_fit_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: clock.now, time=lambda: 1e9 + clock.now))
    reporter, history = progress.Reporter([], 1000), [1.0]
    for _ in range(500):  # repeated at once
        reporter.iteration(history)
    for _ in range(60):
        clock.now += 2.0
        reporter.iteration(history)
    left = metrics.values()["estimated_end_timestamp_seconds"] - 1e9 - clock.now
    assert left == pytest.approx(2.0 * 440, rel=0.01)


def test_an_unknown_metric_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        metrics.add(pases=1)
    with pytest.raises(KeyError, match="itration"):
        metrics.set_gauges(itration=1)


# The server


def test_two_fits_share_a_server_that_closes_after_the_last() -> None:
    before = metrics.values()
    with serve_metrics(0) as url:
        assert url is not None
        with serve_metrics(0) as other:
            assert other == url
            fit()
        first = scraped(url)
        fit()
        second = scraped(url)
    passes = "dfact_fit_passes_total"
    assert second[passes] - first[passes] == first[passes] - before["fit_passes"] > 0
    with pytest.raises(URLError):
        urlopen(url, timeout=30)
    with serve_metrics(0) as url:  # another one can start
        assert url is not None
        assert scraped(url)[passes] == second[passes]


def test_without_a_port_nothing_is_served() -> None:
    with serve_metrics() as url:
        assert url is None


def test_a_port_in_use_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(DfactError, match=f"cannot serve metrics at 127.0.0.1:{port}: .*in use.*choose another port"),
            serve_metrics(port),
        ):
            pass
    with serve_metrics(0) as url:  # the failed attempt has left nothing
        assert url is not None


@pytest.mark.parametrize("port", [-1, 70000, "http", True])
def test_an_invalid_port_is_refused(port: Any) -> None:
    with (
        dask.config.set({"dfact.metrics-port": port}),
        pytest.raises(ParameterError, match=r"metrics-port is .*, expected"),
        serve_metrics(),
    ):
        pass


def test_without_the_client_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(DfactError, match=r"install dfact\[metrics\]"), serve_metrics(0):
        pass


@pytest.mark.parametrize("given", ["option", "setting"])
def test_a_command_serves_metrics(
    given: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dfact.import_array(planted_answers(N, M, 3, seed=0), tmp_path / "answers.zarr")
    found = list[float]()
    caplog.set_level(logging.INFO, "dfact.metrics")

    def logged_url() -> str:
        [message] = [record.getMessage() for record in caplog.records if record.name == "dfact.metrics"]
        return message.removeprefix("Metrics are served at ")

    def scrape(self: Any, iteration: Iteration) -> None:
        del self
        found.append(scraped(logged_url())["dfact_iteration"] - iteration.number)

    monkeypatch.setattr(dfact.Progress, "__call__", scrape)
    command = ["fit", "icqf", str(tmp_path / "answers.zarr"), str(tmp_path / "icqf.model"), "--max-iter", "3"]
    with dask.config.set({"dfact.metrics-port": 0 if given == "setting" else None}):
        assert main([*command, *(["--metrics-port", "0"] if given == "option" else [])]) == 0
    assert len(found) >= 3
    assert not any(found)
    assert (f"Metrics are served at {logged_url()}" in capsys.readouterr().err) == (given == "option")


# The id of a run


def test_the_id_of_a_run_is_given_configured_or_new() -> None:
    with use_run_id() as new, serve_metrics(0) as url:
        assert re.fullmatch("[0-9a-f]{12}", new)
        assert run_id() == new
        assert url is not None
        with urlopen(url, timeout=30) as answer:
            assert f'run_id="{new}"' in answer.read().decode()
    with dask.config.set({"dfact.run-id": 4711}), use_run_id() as configured:  # the id of a batch job may be a number
        assert configured == "4711"
        with use_run_id("mine"):
            assert run_id() == "mine"
    assert not run_id()


# Logs of a process of Dask's


def test_warnings_in_a_process_of_dasks_have_their_level(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    library = logging.getLogger("dfact")
    for logger in (logging.getLogger(), library):
        monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(library, "level", logging.NOTSET)
    configure_logging()
    configure_logging()  # a process may have a worker and a nanny
    logging.getLogger("dfact.cluster").warning("refused %s", "tcp://a")
    [line] = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r".* - dfact.cluster - WARNING - refused tcp://a", line)
