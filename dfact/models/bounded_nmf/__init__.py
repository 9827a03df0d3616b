"""Bounded non-negative matrix factorization: ICQF and NMF.

    icqf, nmf      the estimators
    problem        the objective, its bounds, and checks of the inputs
    solvers        the loop over passes, with the step of the loadings
    passes         the rows: MMPass and ADMMPass improve them in an iteration, RowsPass solves them at the end of a fit
    divergence     passes and solver of NMF at the Kullback-Leibler divergence
    presenter      what a report shows
    commands       ``dfact fit`` and ``dfact select`` of icqf and nmf

The arithmetic of the passes is in :mod:`dfact.kernels`: ``bound_fill`` or ``admm`` for an iteration,
both with the coordinate sweeps or gradient steps of ``box_qp``; ``active_set`` for a row at its optimum;
``divergence`` for the rows at the Kullback-Leibler divergence; ``sparse_products`` for sparse rows.
"""
