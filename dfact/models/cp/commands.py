"""``dfact fit cp`` and ``dfact select cp``."""

import click

from dfact.catalogue import BY_COMMAND
from dfact.cli.model_commands import ModelSpec, SelectSpec
from dfact.cli.options import choice, numbers, seed

_STOCHASTIC = {"batch_sizes": "the stochastic solver chooses them", "step_size": "the default suits the stochastic solver"}

SPECS = (
    ModelSpec(
        BY_COMMAND["cp"],
        """Sparse low-rank components of a tensor.

        PARAFAC (CP) with the elastic net: components that are not needed shrink to zero, as do single entries of the others.
        For tensors with any number of modes and with missing entries. Confounders are not used.
        """,
        example=["dfact fit cp dfact-demo/spectra.zarr spectra.model -k 3 --lam 1e-6 --init svd"],
        changes={
            "lam": {"help": "Weight of the penalties; dfact select cp --criterion held_out chooses it."},
            "noise_variance": {"help": "Variance of the noise; with --laplace-rate, in place of --lam and --l1-ratio."},
            "laplace_rate": {"help": "Rate of the Laplace part of the prior; with --noise-variance."},
        },
        left_out=_STOCHASTIC,
        select=SelectSpec(
            "dfact.models.cp.selection:select_components",
            """Components of a tensor: their number and sparsity.

            1 to -k components are fitted without shrinkage, to all rows and to random halves of them. The largest number is
            chosen whose components, even the weakest, return in both halves, and whose core consistency is at least 50%. The fit to all
            rows is written to MODEL, if that is given. Where no number meets this rule, none is chosen and no model written.

            With the other criteria, solutions are computed along increasing penalties, which leave fewer and fewer components, and the
            criterion chooses one of them. That solution, without its shrinkage, is written.
            """,
            example=("dfact select cp dfact-demo/spectra.zarr spectra.model -k 4 --starts 2 --seed 0", "    --plot curve.png"),
            options=[
                choice(
                    "--criterion",
                    "replicability held_out bic split_half",
                    "Whether components recur in fits to halves of the rows; or along a path of penalties: error of held-out entries, "
                    "Bayesian information criterion, or whether components recur in both halves of the rows.",
                ),
                choice(
                    "--rule",
                    "min knee",
                    "The lowest score, or the number of components where it stops falling steeply (the knee), which is often too small; "
                    "for held_out and bic.",
                ),
                numbers(
                    "--lambdas",
                    "Candidate weights of the penalties.",
                    callback=lambda _, __, values: values and sorted(values),
                    show_default="1e-10 to 1e10",
                ),
                numbers(
                    "--l1-ratios",
                    "Candidates for the share of the l1 penalty, each with a path.",
                    callback=lambda _, __, values: values or None,
                    show_default="the value of --l1-ratio",
                ),
                click.option("--holdout-fraction", default=0.1, help="Fraction of the observed entries to hold out."),
                click.option(
                    "--folds",
                    "n_folds",
                    type=int,
                    show_default="2, halves; 5 for fewer than 20 rows",
                    help="Folds of the rows, for replicability; above 2, fits leave out one fold each.",
                ),
                click.option(
                    "--repeats",
                    "n_repeats",
                    type=int,
                    show_default="5 for halves, 3 for few rows",
                    help="Random splits into folds, for replicability.",
                ),
                click.option("--starts", "n_starts", default=3, help="Starts of each fit, for replicability."),
                click.option("--threshold", default=0.9, help="Similarity from which components count as the same, for replicability."),
                click.option("--least-consistency", default=50.0, help="Least core consistency in percent, for replicability."),
                seed("Seed of the initial factors and of the held-out entries."),
            ],
            changes={"tol": {"help": "Along the path, stop when the relative change of the objective falls below this value."}},
            for_both=["random_state"],
            plot=(
                "dfact.models.cp.plots:selection_plot",
                "rank, zeros and score over lambda, or the replicability of each number of components",
            ),
            left_out=_STOCHASTIC
            | {
                "lam": "one of the lambdas",
                "noise_variance": "it would set lambda",
                "laplace_rate": "it would set lambda",
                "solver": "stochastic steps are for single fits of large tensors",
                "missing": "the share of missing entries decides",
            },
        ),
    ),
    ModelSpec(
        BY_COMMAND["cpals"],
        """Components of a tensor by alternating least squares.

        PARAFAC (CP) without penalties, the baseline of fit cp: the number of components is not determined, and superfluous ones
        cancel each other. The iterations are TensorLy's, in memory. Confounders are not used.
        """,
        example=["dfact fit cpals dfact-demo/spectra.zarr als.model -k 3 --seed 0"],
        checkpoint=False,
    ),
)
