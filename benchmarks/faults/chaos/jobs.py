"""The jobs of the chaos: commands that run once undisturbed on local data, and on the cluster with everything in the object store."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import dfact
from benchmarks.faults.chaos.store import BUCKET
from benchmarks.faults.fits import bits, differing
from dfact.data.synthetic import PlantedQuestionnaire
from dfact.storage.zarr_stores import StrictObjectStore

DATA = f"s3://{BUCKET}/data"
_MODEL, _CHECKPOINT, _STATE = "model.zarr", "checkpoint.zarr", "state"
_ATTEMPTS = 20

_JOB_FILE = """
[job]
state = "{state}"
{where}

[[step]]
run = "import"
source = "{data}/answers.csv"
dest = "{out}/imported.zarr"
items = ["q*"]
id-column = "person"
confounder = ["age", "group:categorical"]
missing = [-9]
overwrite = true

[[step]]
run = "fit icqf"
data = "{out}/imported.zarr"
model = "{model}"
components = 3
init = "random"
seed = 1
max-iter = 40
tol = 0.0
checkpoint-every = 5
overwrite = true

[[step]]
run = "stability"
model = "{model}"
data = "{out}/imported.zarr"
resamples = 2
seed = 0

[[step]]
run = "report"
model = "{model}"
report = "{report}"
data = "{out}/imported.zarr"
overwrite = true
"""


@dataclass(frozen=True)
class Job:
    """A command of which ``{data}``, ``{model}`` and ``{checkpoint}`` are replaced by locations; without one, the job file."""

    name: str
    command: str = ""
    kept: tuple[str, ...] = (_MODEL,)
    """Stores that the command leaves next to each other."""

    def arguments(self, data: str, out: str, local: Path, options: list[str]) -> list[str]:
        """Return the arguments of ``dfact``: where data and results are, a folder for local files, and where it computes."""
        model, checkpoint = f"{out}/{_MODEL}", f"{out}/{_CHECKPOINT}"
        if self.command:
            words = self.command.format(data=data, model=model, checkpoint=checkpoint).split()
            return [*words, "--overwrite", *options]
        where = "\n".join(f'{key.removeprefix("--")} = "{value}"' for key, value in zip(options[::2], options[1::2], strict=True))
        file, state = local / "job.toml", f"{out}/{_STATE}"
        file.write_text(_JOB_FILE.format(state=state, where=where, data=data, out=out, model=model, report=local / "report.html"))
        return ["run", str(file)]


_CHECKPOINTS = "--checkpoint {checkpoint} --checkpoint-every 5"
_ALL_ITERATIONS = f"--tol 0 {_CHECKPOINTS}"
JOBS = (
    Job("ICQF", f"fit icqf {{data}}/answers.zarr {{model}} -k 4 --max-iter 60 {_ALL_ITERATIONS}"),
    Job("ICQF admm", f"fit icqf {{data}}/answers.zarr {{model}} -k 4 --solver admm --max-iter 50 {_ALL_ITERATIONS}"),
    Job(
        "ICQF selection",
        "select icqf {data}/answers.zarr {model} -k 2-4 --beta 0.05,0.2 --blocks 3x3 --folds 3 --seed 0 --checkpoint {checkpoint}",
        kept=(_MODEL, _CHECKPOINT),
    ),
    Job("NMF", f"fit nmf {{data}}/complete.zarr {{model}} -k 4 --max-iter 60 {_ALL_ITERATIONS}"),
    Job("FactorAnalysis", "fit fa {data}/complete.zarr {model} -k 4"),
    Job(
        "ExpectileMF",
        f"fit emf {{data}}/skewed.zarr {{model}} -k 3 --tau 0.2 --ridge 0.1 --seed 0 --max-iter 40 {_ALL_ITERATIONS}",
    ),
    Job(
        "ExpectileMF selection",
        "select emf {data}/skewed.zarr {model} -k 2-3 --ridge 0.1,1 --max-iter 10 --seed 0 --checkpoint {checkpoint}",
        kept=(_MODEL, _CHECKPOINT),
    ),
    Job("GradeOfMembership srsc", f"fit gom {{data}}/memberships.zarr {{model}} -k 3 --method srsc --seed 0 {_CHECKPOINTS}"),
    Job(
        "GradeOfMembership binomial",
        f"fit gom {{data}}/memberships.zarr {{model}} -k 3 --method crsc --likelihood binomial --max-iter 60 --seed 0 {_ALL_ITERATIONS}",
    ),
    Job("Admixture", f"fit admixture {{data}}/memberships.zarr {{model}} -k 3 --ploidy 4 --seed 0 --max-iter 50 {_ALL_ITERATIONS}"),
    Job("ElasticCP bcd", f"fit cp {{data}}/tensor.zarr {{model}} -k 3 --lam 0.5 --seed 0 --max-iter 50 {_ALL_ITERATIONS}"),
    Job(
        "ElasticCP stochastic",
        f"fit cp {{data}}/tensor.zarr {{model}} -k 3 --lam 0.5 --solver stochastic --seed 0 --max-iter 40 {_ALL_ITERATIONS}",
    ),
    Job("job file", kept=(_MODEL, "imported.zarr", _STATE)),
)


def make_data(folder: Path) -> None:
    """Write the datasets and a table to a folder."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    planted = PlantedQuestionnaire(20_000, 40, 4, seed=1)
    codes = np.concatenate(list(planted.chunks(20_000)))
    frame = pd.DataFrame(codes, columns=[f"q{j}" for j in range(40)]).astype(int).replace(planted.MISSING_CODE, -9)
    frame.insert(0, "person", [f"p{i}" for i in range(len(frame))])
    frame["age"] = rng.integers(18, 90, len(frame))
    frame["group"] = rng.choice(["a", "b", "c"], len(frame))
    frame.to_csv(folder / "answers.csv", index=False)
    dfact.import_table(
        folder / "answers.csv",
        folder / "answers.zarr",
        items=["q*"],
        id_column="person",
        confounders={"age": "continuous", "group": "categorical"},
        missing=[-9],
    )
    dfact.import_array(rng.integers(0, 5, (20_000, 4)) @ rng.integers(0, 3, (4, 40)), folder / "complete.zarr")
    shares = np.vstack([np.eye(3)[rng.integers(0, 3, 12_000)], rng.dirichlet([1, 1, 1], 8_000)])
    dfact.import_array(rng.binomial(2, np.clip(shares @ rng.random((3, 50)), 0, 1)).astype(np.float32), folder / "memberships.zarr")
    X = rng.random((20_000, 3)) @ rng.random((3, 60)) + 0.05 * rng.chisquare(3, (20_000, 60))
    X[rng.random(X.shape) < 0.5] = np.nan
    dfact.import_array(X, folder / "skewed.zarr")
    T = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((size, 3)) for size in (8000, 12, 8))) + 0.1 * rng.standard_normal((8000, 12, 8))
    T[rng.random(T.shape) < 0.1] = np.nan
    dfact.import_array(T, folder / "tensor.zarr")


def prepare(folder: str, names: list[str]) -> None:
    """Write the data, and the results of the undisturbed jobs of these names."""
    make_data(Path(folder) / "data")
    for job in JOBS:
        if job.name in names:
            compute_expected(job, Path(folder))


def compute_expected(job: Job, folder: Path) -> None:
    """Run a job undisturbed on local data, in one thread."""
    from dfact.cli.main import main

    out = expected_folder(job, folder)
    out.mkdir(parents=True)
    options = ["--executor", "inline"]
    if (code := main(job.arguments(str(folder / "data"), str(out), out, options))) != 0:
        raise RuntimeError(f"{job.name} ends with {code} without any fault")


def expected_folder(job: Job, folder: Path) -> Path:
    return folder / "expected" / job.name.replace(" ", "-")


@contextmanager
def _patiently() -> Iterator[Any]:
    """Yield a function that repeats another while the store fails: what the supervisor does itself must survive the chaos, too."""

    def repeat(function: Any, *arguments: Any) -> Any:
        for attempt in range(_ATTEMPTS):
            try:
                return function(*arguments)
            except dfact.StoreError:
                if attempt == _ATTEMPTS - 1:
                    raise
                time.sleep(3)
        raise AssertionError

    yield repeat


def upload(folder: str) -> None:
    """Copy the data to the object store, byte for byte."""
    import obstore

    client = StrictObjectStore(DATA).store
    for path in Path(folder).rglob("*"):
        if path.is_file():
            obstore.put(client, str(path.relative_to(folder)), path.read_bytes())


def compare(name: str, out: str, folder: str) -> dict[str, Any]:
    """Return the number of differing and of useless bytes that a job has left in the object store, and delete all of them."""
    job = next(job for job in JOBS if job.name == name)
    with _patiently() as repeat:
        expected = bits_of(str(expected_folder(job, Path(folder)) / _MODEL))
        found = repeat(bits_of, f"{out}/{_MODEL}")
        store = StrictObjectStore(out)
        keys = repeat(store.keys)
        left = sorted({key.split("/")[0] for key in keys} - set(job.kept))
        left_bytes = sum(max(1, repeat(StrictObjectStore(f"{out}/{store_name}").total_bytes)) for store_name in left)
        repeat(store.remove, keys)
    names = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    return {"differing": differing(found, expected), "names": names, "left": left, "left_bytes": left_bytes}


def bits_of(location: str) -> dict[str, bytes]:
    """Return the bits of a stored model and of its selection."""
    model = dfact.load_model(location)
    found = bits(model)
    if getattr(model, "selection_", None) is not None:
        record = model.selection_
        found["selection scores"] = np.asarray(record.scores).tobytes()
        found["selection errors"] = np.asarray(record.errors).tobytes()
        found["selection best"] = repr((record.names, record.values, record.best)).encode()
    return found
