"""``dfact demo``: a complete analysis of real answers, from import to export."""

import shlex
import shutil
from contextlib import closing
from pathlib import Path
from typing import Literal

import click

from dfact.cli.options import example
from dfact.cli.types import path_type
from dfact.errors import StoreError

_ITEMS = ("AS*", "SC*", "AD*", "DO*")
_KINDS: dict[str, Literal["categorical", "continuous"]] = {"age": "continuous", "gender": "categorical"}

_BEGIN = """\
1005 people rated 40 statements about themselves, from 1 (strongly disagree) to 5 (strongly agree). These are
real answers: raw data of openpsychometrics.org on items of the International Personality Item Pool. The demo
fits 4 factors in addition to the effects of age and gender. (The first run compiles some functions for this
machine, which takes ten seconds or more. Later runs start at once.)
"""

_FACTORS = """
What the factors are
  Each participant has a value from 0 to 1 on each factor. The number next to an item is its loading: the
  increase of the answer, in points of the scale, as the factor goes from 0 to 1. From 0.5, a factor is strong.

"""

_CONFOUNDERS = """
How the factors and items differ by age and gender
  Gender 1 is male, 2 female, 3 other; age compares the oldest (72) with the youngest (14). Impact is the
  difference of a factor. A number next to an item is its difference between people with equal factors.
  The anchor tells the two apart: most items have no such difference.

"""

_WRITTEN = {
    "answers": "the answers as a table",
    "items": "the texts of the items",
    "data": "the imported dataset, a Zarr group",
    "model": "the fitted model, a Zarr group",
    "factors": "the factors of all participants as a table",
}

_END = """
Files written
{written}

What to try next
  dfact info {data}
  dfact info {model} --top 10
  dfact fit icqf {data} {other} --components 6 --overwrite
  dfact transform {model} {data} {parquet} --overwrite
The dataset was imported with this command; adapt it to your own data:
  dfact import {answers} {data} --items 'AS*,SC*,AD*,DO*' --missing 0 \\
    --confounder age:continuous --confounder gender:categorical --confounder-missing 0 \\
    --empty-rows drop --dictionary {items} --overwrite
"""


@click.command(epilog=example("dfact demo"))
@click.option("--output", metavar="DIR", type=path_type, default=Path("dfact-demo"), help="Folder for the files that the demo writes.")
def demo(output: Path) -> None:
    """Analyse a real questionnaire as an example.

    Imports answers that come with dfact, fits their factors, and prints commands to try next.
    """
    paths = {name: output / file for name, file in _FILES.items()}
    if output.exists() and not (output.is_dir() and (paths["data"].exists() or not any(output.iterdir()))):
        raise StoreError(
            f"{output} contains other files, expected an empty folder or that of an earlier demo; choose another with --output"
        )
    click.echo(_BEGIN)
    from dfact.text import align_columns

    _run(paths)
    written = align_columns([(f"  {paths[name]}", text) for name, text in _WRITTEN.items()])
    click.echo(_END.format(written=written, **{name: shlex.quote(str(path)) for name, path in paths.items()}), nl=False)


_FILES = {
    "answers": "answers.csv",
    "items": "items.csv",
    "data": "answers.zarr",
    "model": "factors4.model",
    "other": "factors6.model",
    "factors": "factors.csv",
    "parquet": "factors.parquet",
}


def _run(paths: dict[str, Path]) -> None:
    """Import, fit, print and write, with the public functions of the library."""
    from dfact.data.examples import ipip_ascado, ipip_ascado_items_file
    from dfact.data.ingest.tables.table import import_table
    from dfact.export.files import write_model_factors
    from dfact.models.bounded_nmf.icqf import ICQF
    from dfact.models.persistence import save_model
    from dfact.progress import Progress
    from dfact.report.presenters.bounded_nmf import confounders_text, factors_text, summary_text

    paths["answers"].parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ipip_ascado(), paths["answers"])
    shutil.copyfile(ipip_ascado_items_file(), paths["items"])
    dataset = import_table(
        paths["answers"],
        paths["data"],
        items=_ITEMS,
        missing=[0],
        confounders=_KINDS,
        confounder_missing=[0],
        empty_rows="drop",
        dictionary=paths["items"],
        overwrite=True,
    )
    with closing(Progress("fit")) as progress:
        model = ICQF(n_components=4, callbacks=[progress]).fit(dataset)
    save_model(model, paths["model"], overwrite=True)
    write_model_factors(model, paths["factors"], overwrite=True)
    click.echo(summary_text(model))
    click.echo(_FACTORS + factors_text(model))
    click.echo(_CONFOUNDERS + confounders_text(model))
