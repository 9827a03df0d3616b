"""``dfact demo``: the whole way once, with real answers, so that a newcomer sees what comes out."""

import shlex
import shutil
from contextlib import closing
from pathlib import Path
from typing import Literal

import click

from dfact.cli.options import example, path_type
from dfact.errors import StoreError

_ITEMS = ("AS*", "SC*", "AD*", "DO*")
_KINDS: dict[str, Literal["categorical", "continuous"]] = {"age": "continuous", "gender": "categorical"}

_BEGIN = """\
1005 people rated 40 statements about themselves, from 1 (strongly disagree) to 5 (strongly agree): real
answers, raw data of openpsychometrics.org on items of the International Personality Item Pool. dfact looks
for 4 factors behind them, beside the effects of age and gender. (On the first run some functions are
compiled for this machine, which takes some ten seconds or more; later runs start at once.)
"""

_FACTORS = """
What the factors are
  A participant has 0 to 1 of each factor. The number before an item is its loading: by how many points, of
  the scale's 4, its answer rises from none of the factor to all of it. A factor is called strong from 0.5.

"""

_CONFOUNDERS = """
What age and gender explain
  The same for the confounders: gender 1 is male, 2 female, 3 other; age runs from the youngest (14) to the
  oldest (72) and 1-age the other way. The intercept is what everybody answers. Factors come on top of these.

"""

_WRITTEN = {
    "answers": "the answers as a table",
    "items": "what the items say",
    "data": "the dataset made of it, a Zarr group",
    "model": "the fitted model, a Zarr group",
    "factors": "the factors of every participant as a table",
}

_END = """
What was written
{written}

What to try next
  dfact info {data}
  dfact info {model} --top 10
  dfact fit icqf {data} {other} --components 6 --overwrite
  dfact transform {model} {data} {parquet} --overwrite
This is how the dataset was made; yours is made in the same way:
  dfact import {answers} {data} --items 'AS*,SC*,AD*,DO*' --missing 0 \\
    --confounder age:continuous --confounder gender:categorical --confounder-missing 0 \\
    --empty-rows drop --overwrite
"""


@click.command(epilog=example("dfact demo"))
@click.option("--output", metavar="DIR", type=path_type, default=Path("dfact-demo"), help="Folder for what the demo writes.")
def demo(output: Path) -> None:
    """See it work on a real questionnaire.

    Imports answers that come with dfact, finds their factors, and says what to try next.
    """
    places = {name: output / file for name, file in _FILES.items()}
    if output.exists() and not (output.is_dir() and (places["data"].exists() or not any(output.iterdir()))):
        raise StoreError(f"{output} holds other things than an earlier demo; choose a new folder with --output")
    click.echo(_BEGIN)
    from dfact.report.text import aligned

    _run(places)
    written = aligned([(f"  {places[name]}", text) for name, text in _WRITTEN.items()])
    click.echo(_END.format(written=written, **{name: shlex.quote(str(place)) for name, place in places.items()}), nl=False)


_FILES = {
    "answers": "answers.csv",
    "items": "items.csv",
    "data": "answers.zarr",
    "model": "factors4.model",
    "other": "factors6.model",
    "factors": "factors.csv",
    "parquet": "factors.parquet",
}


def _run(places: dict[str, Path]) -> None:
    """Import, fit, print and write; the same calls in Python do the same."""
    from dfact.data.examples import ipip_ascado, ipip_ascado_items, ipip_ascado_items_file
    from dfact.data.ingest.table import import_table
    from dfact.models.bounded_nmf.icqf import ICQF
    from dfact.models.persistence import save_model
    from dfact.progress import Progress
    from dfact.report.export import write_model_factors
    from dfact.report.text import confounders_text, factors_text, summary_text

    places["answers"].parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ipip_ascado(), places["answers"])
    shutil.copyfile(ipip_ascado_items_file(), places["items"])
    dataset = import_table(
        places["answers"],
        places["data"],
        items=_ITEMS,
        missing=[0],
        confounders=_KINDS,
        confounder_missing=[0],
        empty_rows="drop",
        overwrite=True,
    )
    with closing(Progress("fit")) as progress:
        model = ICQF(n_components=4, callbacks=[progress]).fit(dataset)
    save_model(model, places["model"], overwrite=True)
    write_model_factors(model, places["factors"], overwrite=True)
    texts = ipip_ascado_items()
    click.echo(summary_text(model))
    click.echo(_FACTORS + factors_text(model, texts=texts))
    click.echo(_CONFOUNDERS + confounders_text(model, texts=texts))
