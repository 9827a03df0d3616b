"""``dfact run``: checks of the whole job, steps that run once, resumption after any interruption."""

import io
import json
import logging
import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import click
import numpy as np
import pytest

import dfact
from benchmarks.faults.commands import Command, reached_by
from benchmarks.faults.fits import small_partitions
from dfact.batch import record
from dfact.batch.runner import job_log, redirected_to
from dfact.cli.main import main
from dfact.data.examples import ipip_ascado
from tests.conftest import planted_answers

JOB = """
[job]
memory-limit = "8GiB"

[[step]]
run = "import"
source = "answers.csv"
dest = "answers.zarr"
items = ["AS*", "SC*"]

[[step]]
run = "select icqf"
data = "answers.zarr"
model = "chosen.model"
components = "2-3"
folds = 4
blocks = "4x4"
seed = 0

[[step]]
run = "fit icqf"
data = "answers.zarr"
model = "fitted.model"
components = 3
tol = 0
max-iter = 30
checkpoint-every = 3

[[step]]
run = "transform"
model = "fitted.model"
data = "answers.zarr"
out = "factors.csv"

[[step]]
run = "export"
model = "chosen.model"
out = "loadings.csv"

[[step]]
run = "report"
model = "chosen.model"
report = "chosen.html"
data = "answers.zarr"
"""
STEPS = {1: "import", 2: "select icqf", 3: "fit icqf", 4: "transform", 5: "export", 6: "report"}
WRITTEN = ["answers.zarr", "chosen.model", "fitted.model", "factors.csv", "loadings.csv", "chosen.html"]


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    with small_partitions():
        yield


@pytest.fixture
def job(tmp_path: Path) -> Path:
    shutil.copy(ipip_ascado(), tmp_path / "answers.csv")
    (tmp_path / "job.toml").write_text(JOB)
    return tmp_path / "job.toml"


def results(folder: Path) -> list[bytes]:
    """Results of the job as bytes; models hold neither paths nor times."""
    models = [dfact.load_model(folder / name) for name in ("chosen.model", "fitted.model")]
    arrays = [np.asarray(values).tobytes() for model in models for values in (model.components_, model.factors_, model.objective_history_)]
    return [*arrays, *((folder / name).read_bytes() for name in ("factors.csv", "loadings.csv", "chosen.html"))]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """The folder of a job that has run, and what it printed to each stream."""
    folder = tmp_path_factory.mktemp("finished")
    shutil.copy(ipip_ascado(), folder / "answers.csv")
    (folder / "job.toml").write_text(JOB)
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as error:
        assert main(["run", str(folder / "job.toml")]) == 0
    return folder, out.getvalue(), error.getvalue()


@pytest.fixture(scope="module")
def undisturbed(finished: tuple[Path, str, str]) -> list[bytes]:
    return results(finished[0])


@pytest.fixture
def finished_job(finished: tuple[Path, str, str], tmp_path: Path) -> Path:
    """A copy of the job that has run; the record holds relative paths and the time of the source, which the copy keeps."""
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    return tmp_path / "job.toml"


def steps_done(error: str) -> list[int]:
    return [int(number) for number in re.findall(r"step (\d+) \([\w ]+\) finished in", error)]


@pytest.mark.further
def test_finished_job_does_not_run_again(finished: tuple[Path, str, str], finished_job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out, error = finished
    assert out == ""
    assert steps_done(error) == [1, 2, 3, 4, 5, 6]
    log_line = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (info|warning) +(step \d \(|job: )"
    assert [line for line in error.splitlines() if not re.match(log_line, line)] == []
    assert sorted(path.name for path in folder.iterdir()) == sorted([*WRITTEN, "answers.csv", "job.toml", "job.toml.state"])
    before = {name: (finished_job.parent / name).stat().st_mtime_ns for name in WRITTEN}
    assert main(["run", str(finished_job)]) == 0
    assert steps_done(capsys.readouterr().err) == []
    assert {name: (finished_job.parent / name).stat().st_mtime_ns for name in WRITTEN} == before


def append_row(folder: Path) -> None:
    """Add a participant to the source, and keep its time."""
    source = folder / "answers.csv"
    status, text = source.stat(), source.read_text()
    source.write_text(text + text.splitlines()[-1] + "\n")
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_large_sources_are_identified_by_size_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "a.csv"
    source.write_text("a,b\n1,2\n")
    by_content = record._identity(source)
    os.utime(source, ns=(1, 1))
    assert record._identity(source) == by_content
    monkeypatch.setattr(record, "_MOST_HASHED", 4)
    assert record._identity(source) == (8, 1)


@pytest.mark.further
@pytest.mark.parametrize(
    ("change", "again"),
    [
        (lambda folder: (folder / "job.toml").write_text(JOB.replace("max-iter = 30", "max-iter = 31")), [3, 4]),
        (lambda folder: (folder / "factors.csv").unlink(), [4]),
        (lambda folder: shutil.rmtree(folder / "chosen.model"), [2]),
        (lambda folder: (folder / "job.toml").write_text(JOB.replace('"8GiB"', '"7GiB"')), []),
        (lambda folder: (folder / "answers.csv").touch(), []),
        (append_row, [1, 2, 3, 4, 5, 6]),
        (lambda folder: (folder / "job.toml").write_text(JOB.replace("seed = 0", "seed = 1")), [2, 5, 6]),
    ],
    ids=["parameter", "gone", "model gone", "memory", "touched source", "changed source", "seed"],
)
def test_changed_steps_run_again_with_the_steps_that_depend_on_them(finished_job: Path, change, again: list[int], capsys) -> None:  # type: ignore[no-untyped-def]
    change(finished_job.parent)
    assert main(["run", str(finished_job)]) == 0
    assert steps_done(capsys.readouterr().err) == again


def test_all_problems_are_reported_with_their_lines_before_the_first_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "there.csv").write_text("taken")
    (tmp_path / "job.toml").write_text(
        """[job]
memory-limit = "8GiB"
memory = 3

[[step]]
run = "import"
dest = "answers.zarr"
items = "Q*"

[[step]]
run = "fit icqff"

[[step]]
data = "answers.zarr"

[[step]]
run = "fit icqf"
data = "later.zarr"
model = "m.model"
components = "many"
bta = 0.1
checkpoint = true

[[step]]
run = "fit icqf"
data = "answers.zarr"

[other]
x = 1
"""
    )
    assert main(["run", str(tmp_path / "job.toml")]) == 2
    printed = capsys.readouterr().err
    found = {int(line): text for line, text in re.findall(r"job\.toml:(\d+): (.*)", printed)}
    expected = {
        5: "import: 'source' is missing",
        11: "run = 'fit icqff' is not a command; did you mean 'fit icqf'?",
        13: "a step lacks 'run'; expected one of import, ",
        20: "fit icqf: components: 'many' is not a valid integer.",
        21: "'bta' is unknown; did you mean 'beta'?",
        22: "fit icqf: checkpoint: true is not a valid value.",
        24: "fit icqf: 'model' is missing, expected a path for the fitted model",
        28: "'other' is not part of a job; expected [job] and [[step]]",
    }
    for line, text in expected.items():
        assert text in found.get(line, ""), (line, printed)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.toml", "there.csv"]


def test_conflicting_steps_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dfact.import_array(planted_answers(60, 10, 2, 0), tmp_path / "answers.zarr")
    (tmp_path / "taken.csv").write_text("mine")
    step = '[[step]]\nrun = "{}"\n'
    (tmp_path / "job.toml").write_text(
        step.format("export")
        + 'model = "m.model"\nout = "l.csv"\n'
        + step.format("fit icqf")
        + 'data = "answers.zarr"\nmodel = "m.model"\ncomponents = 2\n'
        + step.format("fit gom")
        + 'data = "answers.zarr"\nmodel = "m.model"\ncomponents = 2\n'
        + step.format("transform")
        + 'data = "nowhere.zarr"\nmodel = "m.model"\nout = "taken.csv"\n'
    )
    assert main(["run", str(tmp_path / "job.toml")]) == 2
    printed = capsys.readouterr().err
    assert "job.toml:1: step 1 (export) reads m.model, which step 2 (fit icqf) writes after it" in printed
    assert "job.toml:10: step 3 (fit gom) writes m.model, as step 2 (fit icqf) does" in printed
    (tmp_path / "job.toml").write_text(
        step.format("fit icqf")
        + 'data = "answers.zarr"\nmodel = "m.model"\ncomponents = 2\n'
        + step.format("transform")
        + 'data = "nowhere.zarr"\nmodel = "m.model"\nout = "taken.csv"\n'
    )
    assert main(["run", str(tmp_path / "job.toml")]) == 2
    printed = capsys.readouterr().err
    assert "step 2 (transform) reads nowhere.zarr, which does not exist and which no earlier step writes" in printed
    assert (
        "step 2 (transform) writes taken.csv, which exists and is not an output of this job; remove it, or set overwrite = true in the step"
        in printed
    )
    assert (tmp_path / "taken.csv").read_text() == "mine"
    (tmp_path / "job.toml").write_text("[[step]\n")
    assert main(["run", str(tmp_path / "job.toml")]) == 2
    assert re.search(r"job\.toml:1: invalid TOML: ", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[step]]\nrun = "report"\nmodel = "m\\u0000.model"\nreport = "r.html"\n', "job.toml:3: report: model: .*holds a NUL character"),
        (f"step = {'[' * 5000}{']' * 5000}\n", "job.toml:1: invalid TOML: it is nested too deeply"),
    ],
    ids=["nul", "nested"],
)
def test_what_no_parser_expects_is_reported(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.toml").write_text(text)
    assert main(["run", str(tmp_path / "job.toml")]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_a_changed_record_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_text("id,q\na,1\nb,0\n")
    (tmp_path / "job.toml").write_text('[[step]]\nrun = "import"\nsource = "a.csv"\ndest = "d.zarr"\nitems = "q"\n')
    assert main(["run", str(tmp_path / "job.toml")]) == 0
    document = tmp_path / "job.toml.state" / "zarr.json"
    document.write_text(document.read_text().replace("d.zarr", "e.zarr"))
    assert main(["run", str(tmp_path / "job.toml")]) == 1
    assert "job.toml.state do not match their digest: they are damaged" in capsys.readouterr().err


def test_dry_run_estimates_memory_and_time(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(job), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "step 1 (import): to do (not done yet), writes answers.zarr" in printed
    assert printed.count("memory and time can be estimated once answers.zarr exists") == 2
    assert not (job.parent / "answers.zarr").exists()
    dfact.import_table(job.parent / "answers.csv", job.parent / "elsewhere.zarr", items=["AS*"])
    job.write_text(JOB.replace('data = "answers.zarr"', f'data = "{job.parent}/elsewhere.zarr"'))
    assert main(["run", str(job), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert len(re.findall(r"peak of a process +[\d.]+ [GM]iB", printed)) == 2
    assert len(re.findall(r"time +at most about (a second|\d+ (s|min))", printed)) == 2
    assert ", 8 fits one after the other, from a trial on the first rows" in printed


def test_dry_run_reports_a_failing_step_and_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    dfact.import_array(rng.random((30, 6, 4)), tmp_path / "tensor.zarr")
    dfact.import_array(planted_answers(60, 10, 2, 0), tmp_path / "answers.zarr")
    step = '[[step]]\nrun = "fit icqf"\ndata = "{}.zarr"\nmodel = "{}.model"\ncomponents = {}\n'
    steps = [("tensor", "a", 2), ("answers", "b", 40), ("answers", "c", 2)]
    (tmp_path / "job.toml").write_text("".join(step.format(*fields) for fields in steps))
    assert main(["run", str(tmp_path / "job.toml"), "--dry-run"]) == 1
    printed, message = capsys.readouterr()
    assert re.search(r"job.toml would fail, for the reasons above", message)
    assert "fails in a trial on the first rows: X has 3 modes, expected two: rows and columns" in printed
    assert "fails in a trial on the first rows: n_components=40 is larger than the data allows" in printed
    assert re.search(r"step 3 \(fit icqf\): to do \(not done yet\), writes c.model\n(  .*\n)+  time +at most about", printed)
    assert main(["run", str(tmp_path / "job.toml")]) == 1
    assert "step 1 (fit icqf) failed: X has 3 modes, expected two: rows and columns" in capsys.readouterr().err


@pytest.mark.further
@pytest.mark.parametrize("seed", ["", "seed = 0\n"], ids=["another each time", "the same"])
def test_steps_run_again_if_the_model_they_read_has_changed(seed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dfact.import_array(planted_answers(60, 10, 2, 0), tmp_path / "answers.zarr")
    job, out = tmp_path / "job.toml", tmp_path / "l.csv"
    export = '[[step]]\nrun = "export"\nmodel = "m.model"\nout = "{}.csv"\n'
    stability = '[[step]]\nrun = "stability"\nmodel = "m.model"\ndata = "answers.zarr"\nresamples = 2\nseed = 0\ncold-start = true\n'
    job.write_text(FIT + 'init = "random"\n' + seed + export.format("l") + stability + export.format("after"))
    assert main(["run", str(job)]) == 0
    first = out.read_bytes()
    assert main(["run", str(job)]) == 0
    assert capsys.readouterr().err.count("already done") == 4  # stability changes the model but not the fit
    shutil.rmtree(tmp_path / "m.model")
    assert main(["run", str(job), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "step 1 (fit icqf): to do (its output has been removed)" in printed
    assert all(
        f"step {i} ({name}): depends on step {on} (" in printed for i, name, on in ((2, "export", 1), (3, "stability", 1), (4, "export", 3))
    )
    assert printed.count("depends on") == 3
    assert main(["run", str(job)]) == 0
    assert steps_done(capsys.readouterr().err) == ([1, 3] if seed else [1, 2, 3, 4])
    assert (out.read_bytes() == first) == bool(seed)
    assert main(["run", str(job)]) == 0
    assert steps_done(capsys.readouterr().err) == []


def test_lines_about_the_job_have_no_number_of_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    with job_log("text") as log:
        log.logger.info("all 2 steps are done")
        log.extra = {"step": 2, "command": "fit icqf"}
        log.logger.info("started")
    assert [line.split(maxsplit=1)[1] for line in capsys.readouterr().err.splitlines()] == [
        "info    job: all 2 steps are done",
        "info    step 2 (fit icqf) started",
    ]


@pytest.mark.further
def test_log_lines_as_json(finished_job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished_job.write_text(JOB.replace("max-iter = 30", "max-iter = 31").replace("[job]", "[job]\nmetrics-port = 0"))
    assert main(["run", str(finished_job), "--log", "json", "--run-id", "mine"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert {line["step"] for line in lines} == {0, 1, 2, 3, 4, 5, 6}
    assert {"time", "level", "run_id", "logger", "step", "command", "message"} == set(lines[0])
    assert {line["run_id"] for line in lines} == {"mine"}
    served = [line for line in lines if line["message"].startswith("Metrics are served at http://127.0.0.1:")]
    assert [(line["logger"], line["step"]) for line in served] == [("dfact.metrics", 0)]  # for the whole job
    assert lines[-1]["message"].startswith("all 6 steps are done")
    assert lines[-1]["event"] == "job_finished"
    assert lines[-1]["seconds"] > 0
    events = [(line["step"], line["event"]) for line in lines if line.get("event", "").startswith("step_")]
    assert events[:3] == [(1, "step_skipped"), (2, "step_skipped"), (3, "step_started")]
    ends = [line for line in lines if line.get("event") == "fit_finished"]
    assert ends[0]["model"] == "ICQF"
    last = [line for line in lines if line.get("event") == "iteration" and line["step"] == ends[0]["step"]][-1]
    assert last["iteration"] == ends[0]["iteration"] <= last["iteration_limit"] == 31
    assert last["objective"] >= ends[0]["objective"] > 0


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_messages_of_libraries_have_their_level_and_step(log_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    with job_log(log_format) as log:
        log.extra = {"step": 2, "command": "fit icqf"}
        with redirected_to(log):
            logging.getLogger("dfact.cluster").warning("Worker %s is lost", "a")
            logging.getLogger("dfact.cluster").info("workers call each other again")
            logging.getLogger("another.library").error("stream closed")
            click.echo("4 of 5")
    logging.getLogger("dfact.cluster").info("after the job")
    lines = capsys.readouterr().err.splitlines()
    levels = ("warning", "info", "error", "info")
    messages = ("Worker a is lost", "workers call each other again", "stream closed", "4 of 5")
    if log_format == "json":
        found = [json.loads(line) for line in lines]
        assert [(line["level"], line["message"]) for line in found] == list(zip(levels, messages, strict=True))
        assert {(line["step"], line["command"]) for line in found} == {(2, "fit icqf")}
        assert [line["logger"] for line in found] == ["dfact.cluster", "dfact.cluster", "another.library", "dfact.run"]
    else:
        said = [f"{level:<7} step 2 (fit icqf) {message}" for level, message in zip(levels, messages, strict=True)]
        assert [line.split(" ", 1)[1] for line in lines] == said


@pytest.mark.further
def test_failed_step_ends_the_job(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings, steps = (parts := JOB.split("[[step]]"))[0], dict(zip(STEPS.values(), parts[1:], strict=True))
    text = "[[step]]".join([settings, *(steps[name] for name in ("import", "fit icqf", "transform"))])
    job.write_text(text.replace("components = 3\n", "components = 300\n"))
    assert main(["run", str(job)]) == 1
    printed = capsys.readouterr().err
    assert re.search(r"error +step 2 \(fit icqf\) failed: n_components=300 is larger than the data allows", printed)
    assert "Traceback" not in printed
    assert steps_done(printed) == [1]
    assert main(["run", str(job), "--log", "json"]) == 1
    assert [json.loads(line)["level"] for line in capsys.readouterr().err.splitlines()][-1] == "error"
    job.write_text(text)
    assert main(["run", str(job)]) == 0
    assert steps_done(capsys.readouterr().err) == [2, 3]


@pytest.mark.further
@pytest.mark.faults
def test_job_killed_at_every_step_and_within_a_fit_has_the_same_results(
    job: Path, undisturbed: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("command")
    for number, name in STEPS.items():
        both = number in (2, 3)  # those with a checkpoint; the others in turn
        for moment in ("started", "finished in") if both else ("started",) if number % 2 else ("finished in",):
            command = Command(folder, "run", job, last_words=f"step {number} ({name}) {moment}")
            assert command.ended() == -signal.SIGKILL, command.said
            if (number, moment) == (3, "started"):
                command = Command(folder, "run", job, pause=0.01)
                command.wait(lambda: any(reached_by(checkpoint) >= 20 for checkpoint in job.parent.glob("job.toml.state.*")))
                command.send(signal.SIGKILL)
                assert command.ended() == -signal.SIGKILL, command.said
    command = Command(folder, "run", job)
    assert command.ended() == 0, command.said
    assert results(job.parent) == undisturbed
    assert sorted(path.name for path in job.parent.iterdir()) == sorted([*WRITTEN, "answers.csv", "job.toml", "job.toml.state"])


@pytest.mark.faults
def test_sigterm_within_a_fit_leaves_a_checkpoint(finished_job: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    job = finished_job
    job.write_text(JOB.replace("max-iter = 30", "max-iter = 200000").split('[[step]]\nrun = "transform"')[0])
    folder = tmp_path_factory.mktemp("command")
    command = Command(folder, "run", job)
    command.says("step 3 (fit icqf) fit: ")
    command.send(signal.SIGTERM)
    assert command.ended() == 143, command.said
    assert re.search(
        r"warning step 3 \(fit icqf\) stopped: the checkpoint .* holds \d+ steps, from which the same fit resumes", command.said
    )
    command = Command(folder, "run", job)
    command.says("Resuming from step")
    assert command.alive, command.said
    command.send(signal.SIGKILL)
    command.ended()


FIT = '[[step]]\nrun = "fit icqf"\ndata = "answers.zarr"\nmodel = "m.model"\ncomponents = 2\nmax-iter = 3\n'


def test_job_settings_apply_to_all_steps_and_path_spellings_are_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dfact.import_array(planted_answers(60, 10, 2, 0), tmp_path / "answers.zarr")
    job = tmp_path / "job.toml"
    export = f'[[step]]\nrun = "export"\nmodel = "{tmp_path}/answers.zarr/../m.model"\nout = "l.csv"\n'
    text = "\ufeff[job]\nseed = 0\n# a separator that is not a line end in TOML:\u2028\n" + FIT + 'init = "random"\n' + export
    job.write_text(text, encoding="utf-8", newline="\r\n")
    assert main(["run", str(job)]) == 0
    first = (tmp_path / "l.csv").read_bytes()
    job.write_text(text.replace("seed = 0", "seed = 1"), encoding="utf-8")
    assert main(["run", str(job)]) == 0
    assert (tmp_path / "l.csv").read_bytes() != first
    job.write_text(text + "foo = 1\nsuppress = [true]\n", encoding="utf-8")
    assert main(["run", str(job)]) == 2
    printed = capsys.readouterr().err
    assert "job.toml:15: 'foo' is unknown" in printed
    assert "job.toml:16: export: suppress: expected a list" in printed


@pytest.mark.parametrize(
    ("step", "key", "successor"),
    [
        ('run = "fit gom"\ndata = "a.zarr"\nmodel = "m.model"\nhunt = "kmeans"', "hunt", "vertex-hunting"),
        ('run = "select cp"\ndata = "a.zarr"\nmodel = "m.model"\nshare = 0.1', "share", "holdout-fraction"),
        ('run = "stability"\ndata = "a.zarr"\nmodel = "m.model"\nfresh = true', "fresh", "cold-start"),
        ('run = "export"\nmodel = "m.model"\nout = "l.csv"\nwhat = "loadings"', "what", "table"),
        ('run = "fit gom"\ndata = "a.zarr"\nmodel = "m.model"\nfresh = true', "fresh", None),
    ],
)
def test_renamed_keys_suggest_their_successors(tmp_path: Path, step: str, key: str, successor: str | None, capsys) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "job.toml").write_text(f"[[step]]\n{step}\n")
    assert main(["run", str(tmp_path / "job.toml")]) == 2
    hint = "expected some of" if successor is None else f"did you mean {successor!r}?"
    assert f"job.toml:5: {key!r} is unknown; {hint}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (
            '[[step]]\nrun = "report"\nmodel = "m.model"\nreport = "m.model/r.html"\n',
            "7: step 2 (report) writes m.model/r.html; one of ",
        ),
        ('[[step]]\nrun = "fit gom"\ndata = "answers.zarr"\nmodel = "x/../answers.zarr"\noverwrite = true\n', ", which it also reads"),
        (
            '[[step]]\nrun = "fit gom"\ndata = "ftp://a/b"\nmodel = "n.model"\n',
            "9: fit gom: data: ftp://a/b is a URL with the scheme 'ftp'",
        ),
        ("plan = true\n", "7: 'plan' is unknown"),
    ],
)
def test_steps_with_overlapping_paths_are_refused(tmp_path: Path, more: str, problem: str, capsys) -> None:  # type: ignore[no-untyped-def]
    dfact.import_array(planted_answers(60, 10, 2, 0), tmp_path / "answers.zarr")
    (tmp_path / "job.toml").write_text(FIT + more)
    assert main(["run", str(tmp_path / "job.toml")]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("step", "line", "problem"),
    [
        ('run = "report"\nmodel = "m.model"\nreport = "r.pdf"', 4, "report: report: r.pdf ends in '.pdf', expected one of .html, .htm"),
        ('run = "export"\nout = "x.foo"\nmodel = "m.model"', 3, "export: out: x.foo ends in '.foo', expected one of .csv, .parquet"),
        ('run = "export"\nmodel = "m.model"\nout = "x.zarr"', 4, "export: out: x.zarr ends in '.zarr', expected one of .csv, .parquet"),
        (
            'run = "export"\nmodel = "m.model"\nout = "x"\ntable = "factors"',
            4,
            "export: out: x ends in '', expected one of .csv, .parquet, .zarr",
        ),
        ('run = "transform"\nmodel = "m.model"\ndata = "a.zarr"\nout = "x.xlsx"', 5, "transform: out: x.xlsx ends in '.xlsx', expected"),
        (
            'run = "fit icqf"\ndata = "a.zarr"\nmodel = "m.model"\nplot = "p.gif"',
            5,
            "fit icqf: plot: p.gif ends in '.gif', expected one of .png",
        ),
        ('run = "select icqf"\ndata = "a.zarr"\nplot = "p.txt"', 4, "select icqf: plot: p.txt ends in '.txt', expected one of .png"),
        ('run = "select cp"\ndata = "a.zarr"\nplot = "p.txt"', 4, "select cp: plot: p.txt ends in '.txt', expected one of .png"),
        (
            'run = "fit gom"\ndata = "a.zarr"\nmodel = "m.model"\ncheckpoint = ""',
            5,
            "fit gom: checkpoint: the location is '', expected a path",
        ),
    ],
)
def test_invalid_outputs_are_reported_before_the_first_step(tmp_path: Path, step: str, line: int, problem: str, capsys) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "job.toml").write_text(f"[[step]]\n{step}\n")
    assert main(["run", str(tmp_path / "job.toml")]) == 2
    assert f"job.toml:{line}: {problem}" in capsys.readouterr().err


def killed(folder: Path, job: Path, last_words: str) -> None:
    """Run a job in a process that is killed when it has said this."""
    command = Command(folder, "run", job, last_words=last_words)
    assert command.ended() == -signal.SIGKILL, command.said


@pytest.mark.further
@pytest.mark.process
def test_output_to_overwrite_does_not_count_as_done_and_stability_is_refitted_with_its_model(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path_factory.mktemp("command")
    dfact.import_array(planted_answers(60, 10, 2, 0), tmp_path / "answers.zarr")
    job, out = tmp_path / "job.toml", tmp_path / "l.csv"
    stability = '[[step]]\nrun = "stability"\nmodel = "m.model"\ndata = "answers.zarr"\nresamples = 3\nseed = 0\n'
    job.write_text(FIT + stability + '[[step]]\nrun = "export"\nmodel = "m.model"\nout = "l.csv"\noverwrite = true\n')
    out.write_text("foreign")
    killed(folder, job, "step 3 (export) started")
    assert out.read_text() == "foreign"
    assert main(["run", str(job)]) == 0
    assert out.read_text().startswith('"item"')
    capsys.readouterr()
    assert main(["run", str(job)]) == 0
    assert capsys.readouterr().err.count("already done") == 3
    shutil.rmtree(tmp_path / "m.model")
    killed(folder, job, "step 2 (stability) started")
    assert main(["run", str(job)]) == 0
    assert hasattr(dfact.load_model(tmp_path / "m.model"), "stability_")
    shutil.rmtree(tmp_path / "m.model")
    (tmp_path / "m.model").mkdir()
    (tmp_path / "m.model" / "mine").touch()
    job.write_text(job.read_text().replace("max-iter = 3", "max-iter = 4"))
    assert main(["run", str(job)]) == 1
    assert (tmp_path / "m.model" / "mine").exists()


@pytest.mark.further
@pytest.mark.faults
def test_job_claimed_by_another_process_stops_at_its_next_step(
    finished_job: Path, undisturbed: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    job = finished_job
    for model in ("chosen.model", "fitted.model"):
        shutil.rmtree(job.parent / model)
    first = Command(tmp_path_factory.mktemp("first"), "run", job, pause=0.01)
    first.says("step 2 (select icqf) started")
    first.wait(lambda: any(job.parent.glob("job.toml.state.*")))  # the checkpoint shows that the step is running
    assert first.alive, first.said
    first.send(signal.SIGSTOP)
    second = Command(tmp_path_factory.mktemp("second"), "run", job)
    assert second.ended() == 0, second.said
    assert steps_done(second.said) == [2, 3]
    first.send(signal.SIGCONT)
    assert first.ended() == 1, first.said
    assert "another process" in first.said
    assert results(job.parent) == undisturbed
