"""``dfact fit`` and ``dfact select`` of icqf and nmf."""

import click

from dfact.catalogue import BY_COMMAND
from dfact.cli.model_commands import ModelSpec, SelectSpec
from dfact.cli.options import choice, component_numbers, numbers, seed
from dfact.cli.types import BlockShape, NamedOrNumbers, NumberOrWord

_RULE = choice(
    "--rule",
    "min 1se knee",
    "The lowest error, the fewest factors whose error differs from it by at most one standard error of the difference, or the "
    "number where the error stops falling steeply (the knee).",
)
_FOLDS = [
    click.option(
        "--blocks", "n_blocks", default="10x10", metavar="ROWSxCOLUMNS", type=BlockShape(), help="Numbers of row and column blocks."
    ),
    click.option("--folds", "n_folds", type=int, show_default="10", help="Number of folds to which the blocks are assigned."),
    click.option("--repeats", "n_repeats", default=1, help="Number of times the blocks are assigned to folds."),
]
_FOLD_TOLERANCE = {
    "help": "Stop the final fit when the estimated distance of the objective from its limit, relative to its value, falls below "
    "this; a fit to a fold stops when the relative change of the objective in a pass falls below five times this, or twice if only "
    "beta has changed."
}
_DATASET = (
    dict.fromkeys(("confounders", "stratify"), "the dataset has its confounders")
    | {"sample_weight": "the dataset has its weights"}
    | {"groups": "a dataset has no labels of copies or households", "in_memory": "the memory limit decides"}
)

_select_icqf = SelectSpec(
    "dfact.selection.cross_validation.block_cross_validation:block_cross_validate",
    """Interpretability-constrained factors: their number and sparsity.

    Chooses the parameters whose models predict held-out answers best. Blocks of participants and items are held out in turn,
    and the model is fitted to the other blocks. The model with the chosen parameters is written to MODEL, if that is given.
    """,
    example=(
        "dfact select icqf dfact-demo/answers.zarr survey.model -k 2-8",
        "    --beta 0.05,0.1,0.2 --seed 0 --plot errors.png",
    ),
    options=[
        component_numbers(),
        numbers("--beta", "Candidate weights of the sparsity penalties.", default="0.1"),
        _RULE,
        *_FOLDS,
        click.option("--restarts", "n_restarts", default=0, help="Number of random starts of each fit, in addition to the default start."),
        seed("Seed of the folds and of the random starts."),
    ],
    changes={"tol": _FOLD_TOLERANCE},
    grid=("n_components", "beta"),
    plot=("dfact.report.selection:error_plot", "the error over the number of factors"),
    left_out=dict.fromkeys(("penalty", "subproblem_solver", "rho", "bounds", "max_iter"), "the default serves every candidate")
    | dict.fromkeys(("solver", "init"), "the fits to the folds have their own")
    | {"training": "a factorization without bounds alone has another training"}
    | _DATASET,
)

_select_nmf = SelectSpec(
    "dfact.selection.cross_validation.hold_outs:select_by_hold_out",
    """Non-negative components: their number and penalty.

    Chooses the parameters whose models predict held-out entries best. By default, blocks of rows and columns are held out in turn, and
    the model is fitted to the other blocks. With --hold-out entries, every entry belongs to one of several folds, at random, and all
    candidates are fitted in the same passes over the data. With --hold-out gabriel (bi-cross-validation of Owen & Perry), the model is
    fitted to the rows and columns outside of a block. The model with the chosen parameters is written to MODEL, if that is given.
    """,
    example=(
        "dfact select nmf dfact-demo/topics.zarr topics.model -k 2-6",
        "    --loss kullback-leibler --hold-out entries --seed 0",
    ),
    options=[
        component_numbers("Candidate numbers of components."),
        numbers("--alpha-w", "Candidate weights of the penalty of the factors.", default="0", name="alpha_W"),
        choice("--hold-out", "blocks entries gabriel", "What a fold holds out; gabriel leaves out the rows and columns of a block."),
        _RULE,
        click.option(
            "--blocks",
            "n_blocks",
            metavar="ROWSxCOLUMNS",
            type=BlockShape(),
            show_default="10x10, with gabriel 2x2",
            help="Numbers of row and column blocks.",
        ),
        click.option(
            "--folds",
            "n_folds",
            type=int,
            show_default="10 of blocks, 5 of entries",
            help="Number of folds; gabriel has one for each block.",
        ),
        click.option("--repeats", "n_repeats", default=1, help="Number of times rows and columns are cut into blocks."),
        seed("Seed of the folds."),
    ],
    changes={"alpha_H": {"type": NumberOrWord("same"), "metavar": "NUMBER"}},
    grid=("n_components", "alpha_W"),
    plot=("dfact.report.selection:error_plot", "the error over the number of factors"),
    left_out={"max_iter": "the default serves every candidate", "init": "the fits to the folds have their own"},
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
            "penalty": {"type": NamedOrNumbers("l1", "l2", "l2,1"), "metavar": "l1|l2|l2,1|P,Q"},
            "rho": {"type": NumberOrWord("adaptive"), "metavar": "NUMBER"},
            "q_max": {"type": float},
            "bounds": {"type": float, "nargs": 2, "metavar": "LOW HIGH"},
        },
        select=_select_icqf,
        confounders=True,
        weights=True,
    ),
    ModelSpec(
        BY_COMMAND["nmf"],
        """Non-negative matrix factorization.

        Non-negative components of counts, intensities or words in documents, with scikit-learn's losses and penalties. Entries that a
        sparse matrix does not store are zeros. Confounders are not used.
        """,
        example=["dfact fit nmf dfact-demo/topics.zarr topics.model -k 4 --loss kullback-leibler"],
        changes={"alpha_H": {"type": NumberOrWord("same"), "metavar": "NUMBER"}},
        select=_select_nmf,
        weights=True,
    ),
)
