"""``dfact fit gom`` and ``dfact select gom``."""

import click

from dfact.catalogue import BY_COMMAND
from dfact.cli.model_commands import ModelSpec, SelectSpec
from dfact.cli.options import component_numbers

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
            "dfact.models.gom.modularity:select_by_modularity",
            """Grade of membership: the number of classes.

            Chooses the number of classes whose memberships separate the participants best, by fuzzy modularity. Where memberships are
            mixed it tends to choose fewer classes than there are. The model with that number of classes is written to MODEL, if that
            is given.
            """,
            example=["dfact select gom dfact-demo/answers.zarr survey.model --components 2-10"],
            options=[
                component_numbers("Candidate numbers of classes."),
                click.option(
                    "--resamples",
                    "n_resamples",
                    default=0,
                    help="Number of bootstrap resamples of the participants, which show how the modularity varies; 0 for none.",
                ),
            ],
            for_both=("random_state",),
            plot=("dfact.report.selection:modularity_plot", "the modularity over the number of classes"),
            one_fit=True,
        ),
    ),
)
