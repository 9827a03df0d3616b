"""Parameters of a model by cross-validation, with a choice of what is held out."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

from dfact.errors import ParameterError
from dfact.progress import Iteration
from dfact.selection.cross_validation.block_cross_validation import block_cross_validate
from dfact.selection.cross_validation.entry_cross_validation import cross_validate_configurations
from dfact.selection.grid import expand
from dfact.selection.result import Selection
from dfact.selection.running.results_store import describe_parameters

HOLD_OUTS = ("blocks", "entries", "gabriel")


def select_by_hold_out(
    model: Any,
    X: Any,
    grid: Mapping[str, Any],
    hold_out: str = "blocks",
    *,
    n_blocks: tuple[int, int] | None = None,
    n_folds: int | None = None,
    n_repeats: int = 1,
    rule: str = "min",
    random_state: Any = None,
    checkpoint: str | PathLike[str] | None = None,
    callbacks: Sequence[Callable[[Iteration], None]] = (),
) -> Selection:
    """Choose the parameters of an NMF by cross-validation with one of three hold-outs.

    ==========  ===========================================  ======================================================
    held out    the fit sees                                 as
    ==========  ===========================================  ======================================================
    "blocks"    all other blocks                             :func:`dfact.selection.block_cross_validate`
    "entries"   all other entries (Wold 1978)                :func:`dfact.selection.cross_validate_entries`
    "gabriel"   the rows and columns outside of the block    the former with ``training="disjoint"`` (Owen & Perry 2009)
    ==========  ===========================================  ======================================================

    Blocks are scored by the squared error for both losses, and entries by the model's own loss.

    Parameters
    ----------
    model : NMF
        It is not changed.
    X : array (n, m) of any kind, path or Dataset
        NaN is missing, and entries that a sparse matrix does not store are zeros.
    grid : dict of lists
        Values to try for each parameter, in all combinations, such as ``{"n_components": range(2, 11), "alpha_W": [0, 1e-4]}``.
    hold_out : "blocks", "entries" or "gabriel"
        What a fold holds out.
    n_blocks : (int, int), optional
        Number of blocks of the rows and of the columns, by default 10 × 10, with "gabriel" 2 × 2.
    n_folds : int, optional
        Number of folds, by default 10 of blocks and 5 of entries; "gabriel" has one for each block.
    n_repeats : int
        Number of times that rows and columns are shuffled and cut into blocks.
    rule : "min", "1se" or "knee"
        See :func:`dfact.selection.result.choose`.
    random_state : int, RandomState or None
        Seed of the folds.
    checkpoint : path, optional
        Store for the progress, from which the same call resumes.
    callbacks : sequence of callables
        Called with an :class:`dfact.progress.Iteration` after each fit, such as ``dfact.Progress("select")``.

    Returns
    -------
    Selection
        ``table`` with the ``error``, or the ``deviance`` of entries, of each configuration and its standard errors; ``best_params``;
        and the ``model`` fitted with them to the complete data.

    Raises
    ------
    ParameterError, DataError, MemoryPlanError
        Arguments that the hold-out does not have; the conditions of the functions above.

    References
    ----------
    Kanagal & Sindhwani (2010); Owen & Perry (2009), doi:10.1214/08-AOAS227; Wold (1978).

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.poisson(10 * rng.dirichlet([0.3] * 3, 90) @ rng.random((3, 40)))
    >>> model, grid = dfact.NMF(loss="kullback-leibler", max_iter=50), {"n_components": [2, 3, 4]}
    >>> dfact.selection.select_by_hold_out(model, X, grid, "entries", random_state=0).best_params
    {'n_components': 3}
    """
    if hold_out not in HOLD_OUTS:
        raise ParameterError(f"hold_out is {hold_out!r}, expected one of {', '.join(map(repr, HOLD_OUTS))}")
    if hold_out == "entries":
        if n_blocks is not None or n_repeats != 1:
            found = f"n_blocks is {n_blocks!r}" if n_blocks is not None else f"n_repeats is {n_repeats}"
            raise ParameterError(f"{found} with hold_out='entries', which has folds of single entries; leave it out")
        configurations = expand(model, grid)
        settings = {"grid": [describe_parameters(each) for each in configurations]}
        folds = 5 if n_folds is None else n_folds
        return cross_validate_configurations(model, X, configurations, settings, folds, rule, random_state, checkpoint, callbacks)
    gabriel = hold_out == "gabriel"
    return block_cross_validate(
        model,
        X,
        grid,
        ((2, 2) if gabriel else (10, 10)) if n_blocks is None else n_blocks,
        n_folds,
        n_repeats,
        rule,
        training="disjoint" if gabriel else "others",
        random_state=random_state,
        checkpoint=checkpoint,
        callbacks=callbacks,
    )
