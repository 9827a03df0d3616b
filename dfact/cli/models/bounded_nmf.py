"""``dfact fit icqf``, ``dfact select icqf``, ``dfact fit l1nmf``."""

import click

from dfact.cli.model_commands import ModelSpec, SelectSpec
from dfact.cli.options import choice, component_numbers, components, max_iter_option, numbers, seed, tol_option
from dfact.cli.types import BlockShape, NumberOrAdaptive
from dfact.models.catalogue import BY_COMMAND

_DESCENT = (
    max_iter_option,
    tol_option,
    choice("--init", "nndsvd random", "Initial loadings."),
    seed("Seed of random initial loadings."),
)
_BOUNDS = (
    click.option("--q-max", type=float, help="Upper bound of the loadings.", show_default="highest answer"),
    click.option("--w-max", default=1.0, help="Upper bound of the factors."),
)

_select_icqf = SelectSpec(
    "dfact.selection.cross_validation.block_cross_validation:block_cross_validate",
    """Interpretability-constrained factors: their number and sparsity.

    Chooses the parameters whose models predict held-out answers best. Blocks of participants and items are held out in turn,
    and the model is fitted to the other blocks. The model with the chosen parameters is written to MODEL, if that is given.
    """,
    example=("dfact select icqf survey.zarr survey.model -k 2-10", "    --beta 0.05,0.1,0.2 --rule 1se --seed 0 --plot errors.png"),
    options=[
        component_numbers(),
        numbers("--beta", "Candidate weights of the sparsity penalties.", default="0.1"),
        choice(
            "--rule",
            "lowest 1se knee",
            "The lowest error, the fewest factors whose error differs from it by at most one standard error of the difference, or the "
            "number where the error stops falling steeply (the knee).",
        ),
        click.option(
            "--blocks", "n_blocks", default="10x10", metavar="ROWSxCOLUMNS", type=BlockShape(), help="Numbers of row and column blocks."
        ),
        click.option("--folds", "n_folds", default=10, help="Number of folds to which the blocks are assigned."),
        click.option("--repeats", default=1, help="Number of times the blocks are assigned to folds."),
        click.option("--restarts", default=0, help="Number of random starts of each fit, beside the default start."),
        seed("Seed of the folds and of the random starts."),
        *_BOUNDS,
        click.option("--tol", default=1e-4, help="Stop when the relative change of the objective falls below this value."),
    ],
    grid=("n_components", "beta"),
    plot=("dfact.report.selection:error_plot", "the error over the number of factors"),
    left_out=dict.fromkeys(("penalty", "inner", "rho", "bounds", "max_iter"), "the default serves every candidate")
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
        example=["dfact fit icqf survey.zarr survey.model -k 6"],
        options=[
            components(8),
            click.option("--beta", default=0.1, help="Weight of the penalties on factors and loadings."),
            choice("--penalty", "l1 l2", "l1 for sparse factors and loadings, l2 for small ones."),
            choice(
                "--solver",
                "splitless admm",
                "Optimization method: MM on the augmented Lagrangian (splitless), or the paper's admm, which needs more passes.",
            ),
            choice("--inner", "cd fista", "Solver of the subproblems: coordinate descent or accelerated proximal gradient."),
            click.option(
                "--rho",
                default="3",
                metavar="NUMBER",
                type=NumberOrAdaptive(),
                help="Penalty parameter of the augmented Lagrangian; admm also takes 'adaptive'.",
            ),
            *_DESCENT,
            *_BOUNDS,
            click.option(
                "--bounds",
                type=float,
                nargs=2,
                metavar="LOW HIGH",
                help="Lowest and highest value of the reconstructed answers.",
                show_default="0 and the highest answer",
            ),
        ],
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
        example=["dfact fit l1nmf survey.zarr survey.model -k 6"],
        options=[components(8), click.option("--beta", default=0.1, help="Weight of the sparsity penalties."), *_DESCENT],
        weights=True,
    ),
)
