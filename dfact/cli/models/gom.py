"""``dfact fit gom`` and ``dfact select gom``."""

import click

from dfact.cli.model_commands import ModelSpec, SelectSpec
from dfact.cli.options import checkpoint_options, choice, component_numbers, components, plan_option, results_checkpoint_option, seed
from dfact.models.catalogue import BY_COMMAND

_OPTIONS = (
    choice(
        "--method",
        "crsc srsc ssc srm",
        "Search for pure subjects: cone or simplex regularized spectral clustering (crsc, srsc), "
        "simplex spectral clustering without regularization (ssc), or simplex of the response matrix (srm).",
    ),
    choice("--vertex-hunting", "kmeans svm-cone", "Method by which crsc finds the corners of the cone: K-means or a one-class SVM."),
    click.option(
        "--tau", type=float, help="Regularization of crsc and srsc.", show_default="highest response × the longer side of the data"
    ),
    click.option("--levels", "n_levels", type=float, help="Highest possible response.", show_default="highest response in the data"),
    click.option(
        "--likelihood",
        type=click.Choice(["none", "binomial"]),
        default="none",
        help="Likelihood to maximize after the spectral estimate, without missing answers; no improvement where most are pure.",
    ),
    click.option("--max-iter", default=60, help="With a likelihood: maximum number of reads after the spectral estimate."),
    click.option("--tol", default=1e-7, help="With a likelihood: stop when its relative rise in a read is at most this value."),
    seed("Seed of the K-means starts."),
)

SPECS = (
    ModelSpec(
        BY_COMMAND["gom"],
        """Grade of membership in classes.

        For categorical answers: each participant has memberships in latent classes that sum to 1, and each class has expected
        responses. Responses of 0 and missing entries count as no response. Codes are counts: dfact indicators first gives each
        category of nominal items a column. Confounders are not used.
        """,
        example=["dfact fit gom survey.zarr survey.model -k 3"],
        options=[components(3, "Number of classes; dfact select gom chooses it."), checkpoint_options, plan_option, *_OPTIONS],
        select=SelectSpec(
            "dfact.selection.modularity:select_by_modularity",
            """Grade of membership: the number of classes.

            Chooses the number of classes whose memberships separate the participants best, by fuzzy modularity. Where memberships are
            mixed it tends to choose fewer classes than there are. The model with that number of classes is written to MODEL, if that
            is given.
            """,
            example=["dfact select gom survey.zarr survey.model --components 2-10"],
            options=[
                component_numbers("Candidate numbers of classes."),
                click.option(
                    "--resamples",
                    "n_resamples",
                    default=0,
                    help="Number of bootstrap resamples of the participants, which show how the modularity varies; 0 for none.",
                ),
                results_checkpoint_option,
                *_OPTIONS,
            ],
            for_both=("random_state",),
            plot=("dfact.report.selection:modularity_plot", "the modularity over the number of classes"),
            one_fit=True,
        ),
    ),
)
