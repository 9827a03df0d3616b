"""``dfact fit pca`` and ``dfact select pca``."""

import click

from dfact.catalogue import BY_COMMAND
from dfact.cli.model_commands import ModelSpec, SelectSpec
from dfact.cli.options import choice, component_numbers

SPECS = (
    ModelSpec(
        BY_COMMAND["pca"],
        """Principal components.

        The orthogonal directions of largest variance, with scores of the rows. Missing entries are taken by probabilistic PCA: the
        scores of a row are expected from its observed entries. For answers, measurements and genotypes. Confounders are not used.
        """,
        example=["dfact fit pca dfact-demo/air.zarr air.model -k 2 --scale standard"],
        changes={"n_components": {"help": "Number of components; dfact select pca chooses it."}},
        plot="the loadings of the items, or, of genotypes, the individuals on the first two components",
        select=SelectSpec(
            "dfact.models.pca.number_of_components:select_number_of_components",
            """Principal components: their number.

            Parallel analysis (PA, Horn's) counts the components whose variance exceeds that of unrelated columns with the same
            variances. With --criterion held_out, models are fitted without some of the entries, and the number is chosen that predicts
            these best. The model with that number of components is written to MODEL, if that is given.
            """,
            example=["dfact select pca dfact-demo/air.zarr air.model -k 1-8 --scale standard"],
            options=[
                component_numbers(default="1-10"),
                choice("--criterion", "PA held_out", "Parallel analysis, or the error of held-out entries."),
                choice("--rule", "min 1se knee", "Rule that chooses among the errors of held-out entries."),
                click.option("--quantile", default=0.95, help="Share of the random variances that a variance must exceed."),
                click.option("--holdout-fraction", default=0.1, help="Fraction of the observed entries to hold out."),
                click.option("--repeats", "n_repeats", default=1, help="Number of times entries are drawn and held out."),
                click.option("--seed", "random_state", default=0, help="Seed of the random variances and of the held-out entries."),
            ],
            plot=("dfact.report.selection:components_plot", "the variances next to the random ones, or the errors,"),
        ),
    ),
)
