"""``dfact fit fa``."""

import click

from dfact.cli.model_commands import ModelSpec
from dfact.cli.options import choice, components
from dfact.models.catalogue import BY_COMMAND

_CONVERGENCE = "the extraction reads the correlations alone and converges in seconds"

SPECS = (
    ModelSpec(
        BY_COMMAND["fa"],
        """Factor analysis.

        A baseline for icqf: factors that explain the correlations of the items, by minimum residuals, with a rotation. Confounders
        are not used.
        """,
        example=["dfact fit fa survey.zarr survey.model -k 6"],
        options=[
            components(3),
            choice(
                "--rotation", "promax varimax none", "Rotation of the factors: promax for correlated, varimax for uncorrelated factors."
            ),
            click.option("--kappa", default=4.0, help="Power to which promax raises the loadings."),
            choice(
                "--missing",
                "pairwise listwise",
                "Correlations from participants who answered both items (pairwise) or all items (listwise).",
            ),
        ],
        checkpoint=False,
        weights=True,
        left_out={"method": "minres is the only one", "max_iter": _CONVERGENCE, "tol": _CONVERGENCE},
    ),
)
