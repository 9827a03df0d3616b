"""``dfact fit gom`` and ``dfact select gom``."""

import click

from dfact.catalogue import BY_COMMAND
from dfact.cli.model_commands import ModelSpec, SelectSpec
from dfact.cli.options import choice
from dfact.cli.types import CountsOrAll

SPECS = (
    ModelSpec(
        BY_COMMAND["gom"],
        """Grade of membership in classes.

        For categorical answers: each participant has memberships in latent classes that sum to 1, and each class has expected
        responses. Responses of 0 and missing entries count as no response. Codes are counts: dfact indicators first gives each
        category of nominal items a column. Confounders are not used.
        """,
        example=["dfact fit gom dfact-demo/answers.zarr survey.model -k 3"],
        changes={"n_components": {"help": "Number of classes; dfact select gom chooses it."}, "max_response": {"type": float}},
        select=SelectSpec(
            "dfact.models.gom.number_of_classes:select_number_of_classes",
            """Grade of membership: the number of classes.

            Parallel analysis (PA) counts the eigenvalues of the items' correlations above those of unrelated items: there is a class
            more than these, whatever the sizes. With --criterion deviance, chosen is the number that predicts held-out answers best.
            With --criterion modularity it is the number whose memberships separate the participants best, by fuzzy modularity, as in
            the paper: a lower limit when sizes differ. The model with the chosen number is written to MODEL, if that is given.
            """,
            example=["dfact select gom dfact-demo/answers.zarr survey.model --components 1-10"],
            options=[
                click.option(
                    "-k",
                    "--components",
                    "n_components",
                    default="1-10",
                    metavar="NUMBERS",
                    type=CountsOrAll(),
                    help="Candidate numbers of classes; all for 1 to the number of participants or items, whichever is lower.",
                ),
                choice("--criterion", "PA deviance modularity", "Parallel analysis, deviance of held-out answers, or fuzzy modularity."),
                click.option("--folds", "n_folds", default=5, help="With deviance: number of folds to which the answers are assigned."),
                click.option(
                    "--resamples",
                    "n_resamples",
                    default=0,
                    help="With modularity: number of bootstrap resamples of the participants, which show how it varies; 0 for none.",
                ),
            ],
            for_both=("random_state",),
            plot=("dfact.report.selection:classes_plot", "the eigenvalues next to the random ones, the deviance or the modularity"),
            one_fit=True,
        ),
    ),
)
