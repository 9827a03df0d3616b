"""``dfact pong``."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dfact.cli.options import computing_options, example, executor_for, overwrite_option, read_dataset
from dfact.cli.types import Counts, InputLocation, OutputLocation
from dfact.storage.location import Location

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
    import numpy as np

    from dfact.data.dataset import population_texts
    from dfact.export.row_files import MEMBERSHIPS
    from dfact.export.tables import convergence_text
    from dfact.genetics.admixture import Admixture
    from dfact.genetics.admixture_files import read_memberships
    from dfact.genetics.pong import POPULATIONS, write_pong
    from dfact.genetics.structure_plot import run_memberships, stated_populations
    from dfact.models.persistence import load_model
    from dfact.progress import Progress

    loaded: list[Any] = [read_memberships(run) if Path(run).suffix in (MEMBERSHIPS, ".gz") else load_model(run) for run in runs]
    populations, dataset = stated_populations(loaded), None if data is None else read_dataset(data)
    if populations is None and dataset is not None:
        populations = population_texts(dataset.genotypes.population)
    fits = [] if dataset is None else list(n_components or ())
    with executor_for(executor, scheduler) as resolved:

        def memberships() -> Iterator["NDArray[Any]"]:
            yield from map(run_memberships, loaded)
            for k in fits:
                with closing(Progress(f"fit K = {k}")) as progress:
                    model = Admixture(k, executor=resolved, callbacks=[progress], **settings).fit(dataset)
                click.echo(f"K = {k}: {convergence_text(model)}, log likelihood {model.log_likelihood_:.3f}")
                yield np.asarray(model.memberships_)

        paths = write_pong(Path(folder), memberships(), populations, overwrite=overwrite)
    named = f" -i {paths[1]}" if paths[1].name == POPULATIONS else ""
    click.echo(f"{folder}: {len(loaded) + len(fits)} run(s); show them with pong -m {paths[0]}{named}")
