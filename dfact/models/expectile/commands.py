"""``dfact fit emf`` and ``dfact select emf``."""

import click

from dfact.catalogue import BY_COMMAND
from dfact.cli.model_commands import ModelSpec, SelectSpec
from dfact.cli.options import choice, component_numbers, numbers, seed
from dfact.cli.types import InputLocation, MatrixShape

_ORTHOGONALIZE = {"orthogonalize": "the transformation minimizes the ridge's term"}

SPECS = (
    ModelSpec(
        BY_COMMAND["emf"],
        """Expectile matrix factorization.

        For skewed, partly observed data: components of rows and columns predict the expectile at tau of each entry. The
        expectile at 0.5 is the mean; lower values move the model to the dense, lower side of data that are skewed to the right.

        Several taus are fitted on the same reads of the data. The name of each model, and of each plot, then contains its tau:
        times-0.1.model for times.model. Confounders are not used.
        """,
        example=("dfact fit emf dfact-demo/ratings.zarr ratings.model -k 3 --tau 0.1,0.5,0.9", "    --ridge 0.1"),
        options=[
            numbers("--tau", "Expectiles between 0 and 1; one model is fitted for each.", default="0.5"),
            click.option(
                "--measurements",
                type=InputLocation(),
                metavar="DATASET",
                help="Dataset with one column: linear measurements b_i ≈ ⟨A_i, XYᵀ⟩ of a matrix. The rows of DATA are then the "
                "matrices A_i, each row by row; requires --shape.",
            ),
            click.option("--shape", type=MatrixShape(), metavar="ROWSxCOLUMNS", help="Shape of the matrix that --measurements measure."),
        ],
        other_data=(("measurements", "shape"), "dfact.models.expectile.measured_passes:prepare"),
        changes={
            "n_components": {"help": "Number of components; dfact select emf chooses it."},
            "ridge": {"help": "Weight of the factors' squares. Noisy data with few entries need far more; dfact select emf chooses it."},
        },
        each="tau",
        left_out=_ORTHOGONALIZE,
        select=SelectSpec(
            "dfact.models.expectile.held_out_entries:select_by_held_out",
            """Expectile matrix factorization: components and ridge.

            Chooses the parameters with the lowest expectile loss of held-out entries, which are drawn at random. All candidates are
            fitted to the other entries on the same reads of the data. A model with the chosen parameters is fitted to all entries and
            written to MODEL, if that is given.

            Tau is the question, so it is not chosen: several taus are several questions. Each gets a choice and a model of its
            own, whose name contains its tau: times-0.1.model for times.model.
            """,
            example=(
                "dfact select emf dfact-demo/ratings.zarr ratings.model -k 2-5",
                "    --ridge 0.01,0.1,1 --tau 0.1,0.5 --bins 0,2.5,4,5.5 --seed 0",
            ),
            options=[
                component_numbers("Candidate numbers of components."),
                numbers("--ridge", "Candidate weights of the factors' squares.", default="0.01,0.1,1"),
                numbers("--tau", "Expectiles between 0 and 1; parameters are chosen for each.", default="0.5"),
                click.option("--holdout-fraction", default=0.1, help="Fraction of the observed entries to hold out."),
                choice(
                    "--error",
                    "expectile relative absolute",
                    "Score that chooses: the mean expectile loss, or the median relative or absolute error, whose optimum does not "
                    "depend on tau.",
                ),
                numbers("--bins", "Edges of bins of the true value; the table adds the median error of each."),
                click.option("--repeats", "n_repeats", default=1, help="Number of times entries are drawn and held out."),
                seed("Seed of the held-out entries."),
            ],
            grid=("n_components", "ridge"),
            each=("tau", "dfact.models.expectile.held_out_entries:select_each_by_held_out", "taus"),
            left_out=_ORTHOGONALIZE | {"init": "candidates start from one decomposition"},
        ),
    ),
)
