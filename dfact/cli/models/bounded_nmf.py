"""``dfact fit icqf``, ``dfact select icqf``, ``dfact fit l1nmf``."""

import click

from dfact.cli.model_commands import ModelSpec, SelectSpec
from dfact.cli.options import choice, component_numbers, numbers, seed
from dfact.cli.types import BlockShape, NumberOrAdaptive
from dfact.models.catalogue import BY_COMMAND

_select_icqf = SelectSpec(
    "dfact.selection.cross_validation.block_cross_validation:block_cross_validate",
    """Interpretability-constrained factors: their number and sparsity.

    Chooses the parameters whose models predict held-out answers best. Blocks of participants and items are held out in turn,
    and the model is fitted to the other blocks. The model with the chosen parameters is written to MODEL, if that is given.
    """,
    example=(
        "dfact select icqf dfact-demo/answers.zarr survey.model -k 2-8",
        "    --beta 0.05,0.1,0.2 --rule 1se --seed 0 --plot errors.png",
    ),
    options=[
        component_numbers(),
        numbers("--beta", "Candidate weights of the sparsity penalties.", default="0.1"),
        choice(
            "--rule",
            "min 1se knee",
            "The lowest error, the fewest factors whose error differs from it by at most one standard error of the difference, or the "
            "number where the error stops falling steeply (the knee).",
        ),
        click.option(
            "--blocks", "n_blocks", default="10x10", metavar="ROWSxCOLUMNS", type=BlockShape(), help="Numbers of row and column blocks."
        ),
        click.option("--folds", "n_folds", default=10, help="Number of folds to which the blocks are assigned."),
        click.option("--repeats", "n_repeats", default=1, help="Number of times the blocks are assigned to folds."),
        click.option("--restarts", "n_restarts", default=0, help="Number of random starts of each fit, in addition to the default start."),
        seed("Seed of the folds and of the random starts."),
    ],
    changes={
        "tol": {
            "help": "Stop the final fit when the estimated distance of the objective from its limit, relative to its value, falls below "
            "this; a fit to a fold stops when the relative change of the objective in a pass falls below five times this, or twice if only "
            "beta has changed."
        }
    },
    grid=("n_components", "beta"),
    plot=("dfact.report.selection:error_plot", "the error over the number of factors"),
    left_out=dict.fromkeys(("penalty", "subproblem_solver", "rho", "bounds", "max_iter"), "the default serves every candidate")
    | dict.fromkeys(("solver", "init"), "the fits to the folds have their own")
    | dict.fromkeys(("confounders", "stratify"), "the dataset has its confounders")
    | {"sample_weight": "the dataset has its weights"}
    | {"groups": "a dataset has no labels of copies or households", "in_memory": "the memory limit decides"},
)

SPECS = (
    ModelSpec(
        BY_COMMAND["icqf"],
        """Interpretability-constrained factors.

        Interpretability-constrained questionnaire factorization: factors between 0 and 1, non-negative loadings of the items on
        factors and confounders, and sparsity penalties on all of them.
        """,
        example=["dfact fit icqf dfact-demo/answers.zarr survey.model -k 6"],
        changes={
            "rho": {"type": NumberOrAdaptive(), "metavar": "NUMBER"},
            "q_max": {"type": float},
            "bounds": {"type": float, "nargs": 2, "metavar": "LOW HIGH"},
        },
        select=_select_icqf,
        confounders=True,
        weights=True,
    ),
    ModelSpec(
        BY_COMMAND["l1nmf"],
        """Sparse non-negative factors.

        A baseline for icqf: non-negative factors and loadings with sparsity penalties and without upper bounds. Confounders are
        not used.
        """,
        example=["dfact fit l1nmf dfact-demo/answers.zarr survey.model -k 6"],
        weights=True,
    ),
)
