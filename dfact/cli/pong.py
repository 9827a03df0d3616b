"""``dfact pong``."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from dfact.cli.options import computing_options, example, executor_for, overwrite_option, read_dataset
from dfact.cli.types import Counts
from dfact.jobs.declarations import InputLocation, OutputLocation
from dfact.storage.location import Location


@click.command(epilog=example("dfact pong runs --data dfact-demo/genotypes.zarr -k 2-4", "dfact pong more dfact-demo/best.model"))
@click.argument("folder", type=OutputLocation())
@click.argument("runs", metavar="[RUN]...", type=InputLocation(), nargs=-1)
@click.option("--data", type=InputLocation(), metavar="DATASET", help="Genotypes to which an admixture is fitted for each -k.")
@click.option("-k", "--components", "n_components", metavar="NUMBERS", type=Counts(), help="Numbers of populations to fit, such as 2-6.")
@computing_options
@overwrite_option
def pong(
    folder: Path,
    runs: tuple[Location, ...],
    data: Location | None,
    n_components: Sequence[int] | None,
    overwrite: bool,
    executor: str | None = None,
    scheduler: str | None = None,
    **settings: Any,
) -> None:
    """Write .Q files of several numbers of populations, for pong.

    Each RUN is an admixture model or a .Q file, all of the same individuals. With --data and -k, models are fitted for each number of
    populations first. FOLDER gets a .Q file for each run, the file map of pong, and the populations of the individuals
    (ind2pop.txt), if a model or the dataset states them.
    """
    if (data is None) != (n_components is None):
        raise click.UsageError("--data and -k belong together: the genotypes, and the numbers of populations to fit.")
    if not runs and data is None:
        raise click.UsageError("Got no RUN, expected models or .Q files, or --data and -k.")
    from dfact.export.admixture_files import MEMBERSHIPS, read_memberships
    from dfact.export.pong import POPULATIONS, write_pong
    from dfact.models.admixture.estimator import Admixture
    from dfact.models.persistence import load_model
    from dfact.progress import Progress
    from dfact.report.structure_plot import run_memberships, stated_populations

    loaded: list[Any] = [read_memberships(run) if Path(run).suffix in (MEMBERSHIPS, ".gz") else load_model(run) for run in runs]
    if data is not None:
        dataset = read_dataset(data)
        with executor_for(executor, scheduler) as resolved:
            for k in n_components or ():
                with closing(Progress(f"fit K = {k}")) as progress:
                    loaded.append(Admixture(k, executor=resolved, callbacks=[progress], **settings).fit(dataset))
    paths = write_pong(Path(folder), [run_memberships(run) for run in loaded], stated_populations(loaded), overwrite=overwrite)
    for run, path in zip(loaded, paths[-len(loaded) :], strict=True):
        fit = f"log likelihood {run.log_likelihood_:.3f}" if isinstance(run, Admixture) else "as read"
        click.echo(f"{path}: K = {run_memberships(run).shape[1]}, {fit}")
    named = f" -i {paths[1]}" if paths[1].name == POPULATIONS else ""
    click.echo(f"pong -m {paths[0]}{named}")
