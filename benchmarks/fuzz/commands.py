"""Targets: command lines of every command, generated from the declarations of its parameters."""

# ruff: noqa: SIM905  # a long list of words is easier to read as one text
import contextlib
import hashlib
import io
import os
import random
import shlex
import shutil
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import click
import numpy as np
import pandas as pd
import scipy.sparse as sp

import dfact
from benchmarks.fuzz.genotypes import bed_target
from benchmarks.fuzz.target import M, Target, answers, expect
from dfact.batch.job_file import Step
from dfact.cli import main as cli
from dfact.cli.types import Counts, InputLocation, InputPath, MatrixShape, NumberOrWord, Numbers, OutputLocation, UpdatedLocation
from dfact.engine.cluster import connection
from dfact.errors import DfactError

DATASETS = ["d.zarr", "more.zarr", "new.zarr", "sparse.zarr", "t.zarr", "g.zarr"]
MODELS = ["m.model", "fa.model", "g.model", "cp.model"]
FILES = [*DATASETS, *MODELS]
FILES += ["a.csv", "triplets.csv", "x.npy", "c.bed", "items.csv", "job.toml", "remote.toml", "empty", "folder", "missing"]
"""What a location may be. The folder of the command has all but the last."""

REQUIRED: dict[str, str] = {
    "data": "d.zarr",
    "model": "m.model",
    "models": "m.model",
    "source": "a.csv",
    "path": "d.zarr",
    "job": "job.toml",
    "folder": "deployed",
    "topic": "memory",
    "runs": "g.model",
    "datasets": "d.zarr more.zarr",
    "image": "example.com/dfact:1",
    "by": "sex",
}
"""Valid values of parameters that a command needs."""
USUAL: dict[str, dict[str, str]] = {
    "pong": {"n_components": ""},  # of the runs alone
    "import": {"items": "Q*", "id_column": "id", "missing": "-9"},
    "import-array": {"source": "x.npy"},
    "import-triplets": {"source": "triplets.csv"},
    "fit cp": {"data": "t.zarr", "init": "random"},
    "fit cpals": {"data": "t.zarr"},
    "select icqf": {"n_blocks": "3x3"},
    "select nmf": {"n_blocks": "3x3"},
    "select cp": {"data": "t.zarr", "criterion": "held_out"},
    "fit admixture": {"data": "g.zarr"},
    "select admixture": {"data": "g.zarr"},
    "fit emf": {"data": "sparse.zarr"},
    "select emf": {"data": "sparse.zarr"},
    "deploy": {"job": "remote.toml", "memory": "1GiB", "claim": "claim"},
    "compare": {"n_resamples": "40"},
    "update": {"data": "new.zarr", "output": "out.model"},  # the model is that of other commands
    "demo": {"output": "demo"},
}
"""Further ones, without which a command would always be refused."""
EFFORT: dict[str, str] = {
    "max_iter": "2",
    "n_resamples": "3",
    "n_folds": "2",
    "n_repeats": "1",
    "n_restarts": "0",
    "random_state": "0",
    "n_readers": "1",
    "workers": "1",
    "ploidy": "2",
    "lambdas": "0.1,1",
    "seed": "0",
    "n_blocks": "",
    "n_components": "2",
}
"""Parameters that set how long a command takes, with values for tiny data. They are not made large: that is not a mistake."""
ENDINGS = [".csv", ".parquet", ".zarr", ".model", ".html", ".md", ".xlsx", ".png", ".svg", ".Q", ".P", ".Q_se", ""]
TEXTS = [
    *"Q* Q1 Q1,Q2 -Q1 id age sex sex:categorical sex:continuous * @key [ Q1:0<1<2<3<4 X Q1:1=2 Q1=3".split(),
    *"= : , ; | ab é -1 -- folder/../x A=B 1".split(),
    *"utf-16 cp1252 rot13 hex tcp://127.0.0.1:1 tls://127.0.0.1:1 inproc://x 4GiB 1B 0 -5GB 1e400GB 1e9".split(),
    *("", " ", "\t", "\n", "\udcff", "x" * 3000),
]
NUMBERS = [*"0 1 2 3 -1 0.5 0.1 0.95 1e-300 1e300 nan inf -inf 1e400 -0.0 5 7 100 x 1,2 0x10 1_0 ١ 2**63".split(), "", " 2 "]
NUMBERS += [str(2**31), str(2**63), "9" * 30]
SMALL = [*"0 1 2 3 4 -1 nan x 1.5 0.5 ٢ 1e3".split(), "", " 2"]
LISTS = [*"2 1-3 2,3 3-2 2,2 1- - , 0-1 nan inf,1 0.1,0.2 1e-300 -1 2-99999 x 2x2".split(), ""]
SHAPES = [*"2x2 3x3 0x0 1x1 -1x2 40x6 99999999999x99999999999 x 2 2×3 2x2x2".split(), "", "9" * 30 + "x2"]
"""Values of options that take texts, numbers, efforts, lists and shapes."""


_SUCCEEDED: set[str] = set()
"""Commands that this process has run with valid arguments."""


def write_inputs(folder: Path) -> None:
    """Write an input of each kind that a command takes, once for all targets, next to it."""
    made = folder.with_name("inputs of commands")
    if not made.exists():
        made.mkdir()
        _write_inputs(made)
    shutil.copytree(made, folder, dirs_exist_ok=True)


def _write_inputs(folder: Path) -> None:
    from benchmarks.fuzz.datasets import write_dataset

    table = pd.concat([answers()] * 3, ignore_index=True)  # groups need 50 people
    n = len(table)
    table["id"], table["sex"] = [f"p{i}" for i in range(n)], ["f", "m"] * (n // 2)
    table.to_csv(folder / "a.csv", index=False)
    table[["id", "Q0", "Q1"]].melt("id").set_axis(["row", "column", "value"], axis=1).to_csv(folder / "triplets.csv", index=False)
    (folder / "items.csv").write_text("item,text,scale,key\n" + "".join(f"Q{j},Item {j},s{j % 2},{1 - 2 * (j % 2)}\n" for j in range(M)))
    np.save(folder / "x.npy", np.random.default_rng(7).random((n, M)))
    bed_target().make(folder)
    dfact.import_genotypes(folder / "c.bed", folder / "g.zarr", n_readers=1)
    values = table.filter(like="Q").astype(np.int16).to_numpy()
    settings: dict[str, Any] = {"confounders": table[["age", "sex"]], "empty_rows": "drop", "missing": -9}
    settings["column_labels"] = [f"Q{j}" for j in range(M)]
    dfact.import_array(values, folder / "d.zarr", row_labels=table["id"], **settings)
    dfact.import_array(values, folder / "new.zarr", row_labels=[f"new{i}" for i in range(n)], **settings)
    dfact.import_array(values[:, :3] % 2, folder / "more.zarr", row_labels=table["id"])
    matrix = sp.csr_array(np.where(np.random.default_rng(3).random((n, M)) < 0.5, values + 10.0, 0))
    dfact.import_array(matrix, folder / "sparse.zarr", implicit="missing", empty_rows="drop", row_labels=table["id"])
    write_dataset("tensor", folder / "t.zarr")
    common: dict[str, Any] = {"executor": "inline"}
    models: dict[str, tuple[Any, str]] = {
        "m.model": (dfact.ICQF(2, max_iter=3, **common), "d.zarr"),
        "fa.model": (dfact.FactorAnalysis(2, **common), "d.zarr"),
        "g.model": (dfact.GradeOfMembership(2, random_state=0, **common), "d.zarr"),
        "cp.model": (dfact.ElasticCP(2, max_iter=3, random_state=0, **common), "t.zarr"),
    }
    for name, (model, data) in models.items():
        dfact.save_model(model.fit(dfact.open_dataset(folder / data)), folder / name)
    (folder / "job.toml").write_text('[[step]]\nrun = "fit gom"\ndata = "d.zarr"\nmodel = "of_job.model"\ncomponents = 2\n')
    step = '[[step]]\nrun = "fit gom"\ndata = "/data/d.zarr"\nmodel = "/data/x.model"\n'
    (folder / "remote.toml").write_text(f'[job]\nstate = "/data/state"\n{step}')
    (folder / "empty").write_bytes(b"")
    (folder / "folder").mkdir()


@cache
def commands() -> dict[str, click.Command]:
    """Return all commands by name."""

    def walk(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
        for name, command in group.commands.items():
            if isinstance(command, click.Group):
                yield from walk(command, f"{prefix}{name} ")
            else:
                yield prefix + name, command

    return dict(walk(cli.cli))


def make_value(parameter: click.Parameter, kind: click.ParamType[Any], rng: random.Random) -> str:
    """Return a value of this type, or one that only looks like it."""
    if rng.random() < 0.1:
        return rng.choice([*TEXTS, *NUMBERS])
    if isinstance(kind, click.Choice):
        return rng.choice([*kind.choices] * 3 + ["", "x", kind.choices[0].upper()])
    if isinstance(kind, OutputLocation):
        return rng.choice(["out", "out", "folder/out", "missing/out", "empty/out", "d.zarr", "é"]) + rng.choice(ENDINGS)
    if isinstance(kind, (InputLocation, UpdatedLocation)):
        return rng.choice(MODELS if parameter.name in ("model", "runs") else DATASETS) if rng.random() < 0.5 else rng.choice(FILES)
    if isinstance(kind, (InputPath, click.Path)):
        return rng.choice(FILES)
    if isinstance(kind, MatrixShape):
        return rng.choice(SHAPES)
    if isinstance(kind, (Counts, Numbers)):
        return rng.choice(LISTS)
    if parameter.name in EFFORT:
        return rng.choice(SMALL)
    if isinstance(kind, (click.types.IntParamType, click.types.FloatParamType, NumberOrWord)):
        return rng.choice(NUMBERS)
    return rng.choice(TEXTS)


def make_values(parameter: click.Parameter, rng: random.Random) -> list[str]:
    """Return the values that a parameter takes once."""
    if isinstance(parameter.type, click.Tuple):
        return [make_value(parameter, kind, rng) for kind in parameter.type.types]
    number = parameter.nargs if parameter.nargs > 0 else rng.choice([0, 1, 2, 3])
    return [make_value(parameter, parameter.type, rng) for _ in range(number)]


def make_arguments(name: str, rng: random.Random, n_changed: int) -> list[str]:
    """Return arguments of a command: valid ones, of which this number are replaced, removed, repeated or added."""
    command = commands()[name]
    usual = REQUIRED | {"destination": "out.zarr", "out": _output(name)} | EFFORT | USUAL.get(name, {})
    usual |= {"model": "out.model"} if name.split(maxsplit=1)[0] in ("fit", "select") else {}
    arguments: list[str] = []
    positional: list[str] = []
    changed = {id(parameter) for parameter in rng.sample(command.params, min(len(command.params), n_changed))}
    for parameter in command.params:
        is_needed = parameter.required or isinstance(parameter, click.Argument)
        value = usual.get(str(parameter.name)) if is_needed or parameter.name not in REQUIRED else None
        given = value.split(" ") if value else []
        if parameter.required and not given:
            raise AssertionError(f"{name} needs {parameter.name}, which has no valid value here")
        values = make_values(parameter, rng) if id(parameter) in changed else given
        if isinstance(parameter, click.Argument):
            positional += values
        elif getattr(parameter, "is_flag", False):
            arguments += [rng.choice([*parameter.opts, *parameter.secondary_opts])] if id(parameter) in changed else []
        elif values:
            repeated = rng.choice([1, 1, 1, 2]) if id(parameter) in changed else 1
            arguments += [rng.choice(parameter.opts), *values] * repeated
    if n_changed and rng.random() < 0.03:
        positional.append(rng.choice([*TEXTS, *FILES]))
    if n_changed and rng.random() < 0.03:
        arguments.append(rng.choice(["--unknown", "-x", "--help", "--", "-"]))
    return [*(["--debug"] if n_changed and rng.random() < 0.05 else []), *name.split(), *positional, *arguments]


def _output(name: str) -> str:
    """Return an output of a format that the command writes."""
    endings = {"report": ".html", "structure": ".png", "describe": ".html", "transform": ".csv", "export": ".csv"}
    return f"out{endings.get(name, '.zarr')}"


def commands_target(names: Callable[[], list[str]]) -> Target:
    """Return the target of the commands with these names, run in their folder."""

    def mutate(folder: Path, rng: random.Random) -> bool:
        name = rng.choice(names())
        if name == "demo" and rng.random() < 0.9:  # takes seconds
            name = "info"
        arguments = make_arguments(name, rng, rng.choice([0, 1, 1, 2, 2, 3, 5]))
        if name == "demo":  # that of a cluster would start processes
            arguments = ["tensor" if argument == "cluster" else argument for argument in arguments]
        (folder / "arguments").write_bytes("\0\0".join(arguments).encode("utf-8", "surrogateescape"))
        return False

    def read(folder: Path, out: Path, same: bool) -> None:  # noqa: ARG001  # every reader takes the same arguments
        path = folder / "arguments"
        if not path.exists():  # the unchanged input: all commands succeed
            for name in {*names()} - _SUCCEEDED - {"demo"}:
                run_command(make_arguments(name, random.Random(0), 0), folder)
                _SUCCEEDED.add(name)
            return
        arguments = path.read_bytes().decode("utf-8", "surrogateescape").split("\0\0")
        path.unlink()
        run_command(arguments, folder)

    return Target(write_inputs, mutate, read)


def run_command(arguments: list[str], folder: Path, *, keep: bool = False) -> None:
    """Run a command in the folder, which it must leave as its exit code says; raise DfactError if it is refused.

    What it writes is removed unless ``keep``.
    """
    before = snapshot(folder)
    shown = shlex.join(arguments)
    code, out, errors = _run(arguments, folder, shown)
    after = snapshot(folder)
    for path in map(Path, after.keys() - before.keys()):  # the results, once they are known
        if path.parent == folder and not keep:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    step = _parsed(arguments, folder)
    kept = () if step is None else _locations(step.parameters.get("checkpoint"), folder)
    new = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    new = {name for name in new if not any(Path(name).is_relative_to(path) for path in kept)}
    expect(code in (0, 1, 2, 3), f"exit code {code} of {shown}")
    if code:
        expect(errors.strip(), f"exit code {code} without a message: {shown}")
        partial = code == 1 and step is not None and step.name in ("run", "demo")  # steps that are done stay
        expect(not new or partial, f"{shown} fails ({errors[-300:]}) and leaves {sorted(new)}")
        raise DfactError(errors)
    expect(out or errors, f"{shown} prints nothing")
    planned = step is None or step.parameters.get("plan_only")
    for location in () if planned or step is None else step.created:
        expect(os.path.normpath(folder / location) in after, f"{shown} writes no {location}")
    allowed = () if step is None or planned else [Path(os.path.normpath(folder / location)) for location in step.outputs]
    outside = {name for name in new if not any(Path(name) == path or Path(name).is_relative_to(path) for path in allowed)}
    free = step is not None and step.name in ("run", "demo", "deploy")  # their outputs are folders, or named in the job
    parents = {str(parent) for path in allowed for parent in Path(path).parents}
    expect(free or outside <= parents, f"{shown} leaves {sorted(outside)}")


def _run(arguments: list[str], folder: Path, shown: str) -> tuple[int, str, str]:
    """Return the exit code, and what is printed to streams that encode as a terminal's do."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=errors) for errors in ("strict", "backslashreplace")]
    numeric: list[str] = []

    def show(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, RuntimeWarning):
            numeric.append(f"{message} at {rest[:2]}")
        show_warning(message, category, *rest, **more)

    show_warning = cli._show_warning
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(folder))
        stack.enter_context(contextlib.redirect_stdout(streams[0]))
        stack.enter_context(contextlib.redirect_stderr(streams[1]))
        stack.enter_context(mock.patch.object(cli, "_show_warning", show))
        stack.enter_context(mock.patch.object(connection, "_CONNECT_SECONDS", 0.2))
        try:
            code = cli.main(arguments)
        except SystemExit as error:
            raise AssertionError(f"{shown} exits") from error
        except Exception as error:
            raise AssertionError(f"{shown} crashes") from error
    for stream in streams:
        stream.flush()
    printed = [stream.buffer.getvalue().decode() for stream in streams]  # type: ignore[attr-defined]  # it is a BytesIO
    expect(not numeric, f"{shown} warns: {numeric}")
    asked = "--debug" in arguments and "\ndfact." in printed[1]
    expect(asked or "Traceback" not in printed[1], f"{shown} prints a traceback: {printed[1][-3000:]}")
    return code, printed[0], printed[1]


def _parsed(arguments: list[str], folder: Path) -> Step | None:
    """Return the command with its parameters; None if they are invalid, or print its help."""
    words = [word for word in arguments if word != "--debug"]
    name = next(name for name in commands() if words[: len(name.split())] == name.split())
    command = commands()[name]
    with contextlib.chdir(folder), warnings.catch_warnings():
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                context = command.make_context(name, words[len(name.split()) :], parent=click.Context(cli.cli, info_name="dfact"))
        except (click.ClickException, click.exceptions.Exit, DfactError):
            return None
    return Step(1, 1, name, command, {}, context.params)


def _locations(value: Any, folder: Path) -> tuple[Path, ...]:
    return () if not value else (Path(os.path.normpath(folder / value)),)


def snapshot(folder: Path) -> dict[str, str]:
    """Return a digest of each file below the folder, and an empty one of each folder, by path."""
    return {
        str(path): hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest() if path.is_file() else "" for path in folder.rglob("*")
    }


COMMAND_TARGETS = {
    "command lines": commands_target(lambda: [name for name in commands() if not name.startswith("site ")]),
    "command lines of fits": commands_target(lambda: [name for name in commands() if name.startswith("fit ")]),
    "command lines of selections": commands_target(lambda: [name for name in commands() if name.startswith("select ")]),
    "command lines of imports": commands_target(lambda: [name for name in commands() if name.startswith(("import", "join"))]),
}
