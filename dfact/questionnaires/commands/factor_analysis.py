"""``dfact fit fa`` and ``dfact select fa``."""

import click

from dfact.catalogue import BY_COMMAND
from dfact.cli.model_commands import ModelSpec, SelectSpec
from dfact.cli.options import choice, component_numbers

_CONVERGENCE = "the extraction reads the correlations alone and converges in seconds"
_LEFT_OUT = {"method": "minres is the only one", "max_iter": _CONVERGENCE, "tol": _CONVERGENCE}
SPECS = (
    ModelSpec(
        BY_COMMAND["fa"],
        """Factor analysis.

        A baseline for icqf: factors that explain the correlations of the items, by minimum residuals, with a rotation. Confounders
        are not used.
        """,
        example=["dfact fit fa dfact-demo/answers.zarr survey.model -k 6", "    --correlation polychoric --rotation oblimin"],
        changes={
            "n_components": {"help": "Number of factors; dfact select fa chooses it."},
            "kaiser": {"show_default": "scaled for promax and varimax, not for oblimin"},
        },
        checkpoint=False,
        weights=True,
        left_out=_LEFT_OUT,
        select=SelectSpec(
            "dfact.questionnaires.factor_analysis.number_of_factors:select_number_of_factors",
            """Factor analysis: the number of factors.

            Compares parallel analysis of principal components (PA, Horn's) and of common factors (PA-factors, as in psych), the minimum
            average partial (MAP) and BIC, and chooses by one of them. Eigenvalues are compared with unrelated answers' (random). The
            model with that number of factors is written to MODEL, if that is given.
            """,
            example=["dfact select fa dfact-demo/answers.zarr survey.model -k 1-10"],
            options=[
                component_numbers(default="1-10"),
                choice("--criterion", "PA PA-factors MAP BIC", "Criterion that chooses the number of factors."),
                click.option(
                    "--quantile",
                    default=0.95,
                    help="Share of the random eigenvalues that an eigenvalue must exceed in the parallel analyses.",
                ),
                click.option("--seed", "random_state", default=0, help="Seed of the random eigenvalues."),
            ],
            plot=("dfact.report.selection:scree_plot", "the eigenvalues and the random ones, a scree plot,"),
            one_fit=True,
            checkpoint=False,
            left_out=_LEFT_OUT | {"sample_weight": "the dataset has its weights"},
        ),
    ),
)
