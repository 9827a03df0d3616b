"""``dfact select``."""

from contextlib import closing
from pathlib import Path
from typing import Any

import click

from dfact.cli.gom import gom_options
from dfact.cli.options import example, path_type, read_dataset, workplace


def counts(_: click.Context, __: click.Parameter, value: str) -> list[int]:
    """Numbers and ranges of them, each once: "2-5,8" are 2, 3, 4, 5 and 8."""
    found: list[int] = []
    for entry in value.split(","):
        first, dash, last = (part.strip() for part in entry.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise click.BadParameter(f"{entry.strip()!r} is not a number or a range; expected such as 2-10 or 2,3,5")
        numbers = range(int(first), int(last if dash else first) + 1)
        if not numbers:
            raise click.BadParameter(f"{entry.strip()!r} is an empty range; expected such as 2-10")
        found += numbers
    return list(dict.fromkeys(found))


@click.group()
def select() -> None:
    """Choose the size of a model by what the data say."""


@select.command(epilog=example("dfact select gom survey.zarr survey.model --components 2-10"))
@click.argument("data", type=path_type)
@click.argument("model", type=path_type, required=False)
@click.option("-k", "--components", "n_components", default="2-10", metavar="NUMBERS", callback=counts, help="Numbers of classes to try.")
@gom_options
def gom(
    data: Path,
    model: Path | None,
    n_components: list[int],
    executor: str | None,
    scheduler: str | None,
    plot: Path | None,
    overwrite: bool,
    **parameters: Any,
) -> None:
    """Grade of membership: the number of classes.

    The one whose memberships part the participants best, by fuzzy modularity. The model with so many
    classes is written to MODEL, if that is given.
    """
    from dfact.cli.results import places
    from dfact.engine.progress import Progress
    from dfact.models.gom import GradeOfMembership
    from dfact.report.kinds import model_text
    from dfact.report.selections import selection_text
    from dfact.selection.modularity import select_by_modularity

    with workplace(executor, scheduler) as place:
        dataset = read_dataset(data)
        with places(model, plot, overwrite=overwrite) as keep:
            with closing(Progress("select")) as progress:
                estimator = GradeOfMembership(**parameters, executor=place, callbacks=[progress])
                selection = select_by_modularity(estimator, dataset, n_components)
            keep(selection.model)
    click.echo(f"{selection_text(selection)}\n\n{model_text(selection.model)}")
