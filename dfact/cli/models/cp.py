"""``dfact fit cp`` and ``dfact select cp``."""

import click

from dfact.cli.model_commands import ModelSpec, SelectSpec
from dfact.cli.options import choice, components, numbers, results_checkpoint_option, seed
from dfact.models.catalogue import BY_COMMAND

_components = components(10, "Initial number of components.")
_PROBLEM = (
    click.option("--l1-ratio", default=0.2, help="Share of the l1 penalty, from 0 (selects components) to 1 (selects single entries)."),
    click.option("--nonnegative", is_flag=True, help="Constrain all factors to be at least 0."),
    choice("--prior", "estimate none", "Variances of the slices in the l2 penalty: estimated, or all 1 (none)."),
    choice("--init", "random nvecs", "Initial factors: random, or singular vectors of the unfoldings."),
    click.option("--max-iter", default=200, help="Maximum number of iterations for each lambda."),
    click.option(
        "--tol",
        default=3e-5,
        help="Stop when the estimated relative distance of the objective from its limit falls below this value; "
        "in a selection, when its relative change does.",
    ),
)
_STOCHASTIC = {"batch_sizes": "the stochastic solver chooses them", "step_size": "the default suits the stochastic solver"}

SPECS = (
    ModelSpec(
        BY_COMMAND["cp"],
        """Sparse low-rank components of a tensor.

        PARAFAC (CP) with the elastic net: components that are not needed shrink to zero, as do single entries of the others.
        For tensors with any number of modes and with missing entries. Confounders are not used.
        """,
        example=["dfact fit cp amino.zarr amino.model -k 3 --lam 1e-6 --init nvecs"],
        options=[
            _components,
            click.option("--lam", default=1.0, help="Weight of the penalties; dfact select cp chooses it."),
            *_PROBLEM,
            choice("--solver", "bcd stochastic", "Block coordinate descent, or stochastic steps on samples."),
            choice(
                "--missing",
                "auto fill exact",
                "Missing entries: imputed by the model in each pass (fill), or excluded from each update, in memory (exact).",
            ),
            seed("Seed of the initial factors."),
        ],
        left_out=_STOCHASTIC,
        select=SelectSpec(
            "dfact.selection.solution_path:select_on_path",
            """Components of a tensor: their number and sparsity.

            Solutions are computed along increasing penalties, which leave fewer and fewer components, and the criterion chooses one
            of them. That solution, without its shrinkage, is written to MODEL, if that is given.
            """,
            example=("dfact select cp amino.zarr amino.model -k 8 --l1-ratio 0", "    --rule knee --seed 0 --plot path.png"),
            options=[
                _components,
                choice(
                    "--criterion",
                    "held_out bic split_half",
                    "Error of held-out entries, Bayesian information criterion, or components that recur in both halves of the rows.",
                ),
                choice(
                    "--rule",
                    "lowest knee",
                    "The lowest score, or the number of components where it stops falling steeply (the knee); not with split_half.",
                ),
                numbers(
                    "--lambdas",
                    "Candidate weights of the penalties.",
                    callback=lambda _, __, values: values and sorted(values),
                    show_default="1e-10 to 1e10",
                ),
                click.option("--holdout-fraction", default=0.1, help="Fraction of the observed entries to hold out."),
                seed("Seed of the initial factors and of the held-out entries."),
                results_checkpoint_option,
                *_PROBLEM,
            ],
            for_both=["random_state"],
            plot=("dfact.report.presenters.cp.plots:path_plot", "rank, zeros and score over lambda"),
            left_out=_STOCHASTIC
            | {
                "lam": "one of the lambdas",
                "solver": "stochastic steps are for single fits of large tensors",
                "missing": "the share of missing entries decides",
            },
        ),
    ),
)
