"""Targets: job files, generated from the declarations of their commands, and the records of jobs."""

# ruff: noqa: ARG001  # every reader takes the same arguments
import json
import math
import random
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import click

from benchmarks.fuzz.commands import EFFORT, REQUIRED, USUAL, commands, make_values, run_command, write_inputs
from benchmarks.fuzz.mutations import DEEP, as_json, mutate_any, mutate_bytes, mutate_file, mutate_json
from benchmarks.fuzz.target import Target, expect
from dfact.batch.job_file import _command_names, setting_names
from dfact.cli.main import cli

_JOB = """[job]
executor = "inline"

[[step]]
run = "import"
source = "a.csv"
dest = "imported.zarr"
items = ["Q*"]
id-column = "id"
missing = [-9]

[[step]]
run = "fit gom"
data = "imported.zarr"
model = "of_job.model"
components = 2
seed = 0

[[step]]
run = "export"
model = "of_job.model"
out = "loadings.csv"
"""
_EXPORTED: list[bytes] = []


@cache
def _job_commands() -> list[str]:
    return list(_command_names(cli))


def make_step(number: int, rng: random.Random) -> dict[str, Any]:
    """Return a valid step of a command, with some options of declared types."""
    name = rng.choice(_job_commands())
    usual = REQUIRED | {"destination": f"out{number}.zarr", "out": f"out{number}.csv", "runs": "g.model"} | EFFORT | USUAL.get(name, {})
    usual |= {"model": f"out{number}.model"} if name.split()[0] in ("fit", "select") else {}
    step: dict[str, Any] = {"run": name}
    chosen = rng.sample(commands()[name].params, rng.choice([0, 1, 2]))
    for parameter in commands()[name].params:
        key = setting_names(parameter)[0]
        if getattr(parameter, "is_flag", False):
            step |= {key: rng.random() < 0.5} if parameter in chosen else {}
        elif parameter in chosen:
            values = [_typed(value, parameter.type, rng) for value in make_values(parameter, rng)]
            step[key] = values if len(values) != 1 or rng.random() < 0.2 else values[0]
        elif usual.get(str(parameter.name)):
            step[key] = usual[str(parameter.name)]
    return step


def _typed(value: str, kind: Any, rng: random.Random) -> Any:
    """Return numbers as numbers at times, as users write them."""
    if isinstance(kind, (click.types.IntParamType, click.types.FloatParamType)) and rng.random() < 0.7:
        try:
            return float(value) if not value.isdecimal() else int(value)
        except ValueError:
            return value
    return value


def as_toml(document: Any, rng: random.Random) -> str:
    """Return a document as TOML, or as text like it where TOML has no such value."""
    if not isinstance(document, dict):
        return f"step = {_value(document, rng)}\n"
    lines = []
    for name, part in document.items():
        tables = part if isinstance(part, list) and part and all(isinstance(table, dict) for table in part) else None
        for table in tables or ([part] if isinstance(part, dict) else []):
            lines.append(f"[[{_key(name)}]]" if tables else f"[{_key(name)}]")
            lines += [f"{_key(key)} = {_value(value, rng)}" for key, value in table.items()]
        if not tables and not isinstance(part, dict):
            lines.insert(0, f"{_key(name)} = {_value(part, rng)}")
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if name.replace("-", "").replace("_", "").isalnum() and name.isascii() else json.dumps(name)


def _value(value: Any, rng: random.Random) -> str:
    if value == DEEP:
        return as_json(DEEP, rng).replace(":", "=")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_value(item, rng)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_value(item, rng) for item in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": "nan", "inf": "inf", "-inf": "-inf"}[str(value)]
    return json.dumps(value, ensure_ascii=rng.random() < 0.5)


def job_target() -> Target:
    def mutate(folder: Path, rng: random.Random) -> bool:
        document: Any = {"step": [make_step(number, rng) for number in range(rng.choice([1, 1, 2, 3]))]}
        if rng.random() < 0.3:
            document = tomllib.loads(_JOB)
        if rng.random() < 0.5:
            setting = rng.choice(["memory-limit", "executor", "state", "seed", "scheduler"])
            document = {"job": {setting: rng.choice(["1GiB", "inline", "s"])}} | document
        if rng.random() < 0.6:
            document = mutate_json(document, rng)
        data = as_toml(document, rng).encode("utf-8", "surrogatepass")
        (folder / "job.toml").write_bytes(mutate_bytes(data, rng) if rng.random() < 0.2 else data)
        (folder / "how").write_text(rng.choice(["--dry-run", "--dry-run", "--log json"]))
        return False

    def read(folder: Path, out: Path, same: bool) -> None:
        how = folder / "how"
        options = how.read_text() if how.exists() else "--dry-run"
        how.unlink(missing_ok=True)
        run_command(["run", "job.toml", *options.split()], folder)

    return Target(write_inputs, mutate, read)


def record_target() -> Target:
    """Return the target of a job that has run partly and whose record is damaged: it must end as without damage, or be refused."""

    def make(folder: Path) -> None:
        write_inputs(folder)
        (folder / "job.toml").write_text(_JOB)
        run_command(["run", "job.toml"], folder, keep=True)
        _EXPORTED[:] = [(folder / "loadings.csv").read_bytes()]
        (folder / "loadings.csv").unlink()

    def read(folder: Path, out: Path, same: bool) -> None:
        run_command(["run", "job.toml"], folder, keep=True)
        expect((folder / "loadings.csv").read_bytes() == _EXPORTED[0], "other results")
        (folder / "loadings.csv").unlink()

    def change(data: bytes, rng: random.Random) -> bytes:
        return mutate_bytes(data, rng) if rng.random() < 0.4 else as_json(mutate_json(json.loads(data), rng), rng).encode()

    state = mutate_file("job.toml.state/zarr.json", change)
    return Target(make, mutate_any(state), read)


JOB_TARGETS = {"job files": job_target(), "job records": record_target()}
