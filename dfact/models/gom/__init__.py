"""Grade of membership: GradeOfMembership.

    estimator    the steps of a fit, the memberships of new subjects, the checks
    growth       the sums of a fit by likelihood, to which new subjects are added
    search       the pure subjects of each number of classes: which method hunts for them, and the projection made of them
    passes       counts of the responses, and the memberships by the projection
    number_of_classes, modularity   the choice of the number of classes, by held-out answers or by fuzzy modularity
    presenter, plots, tables   what a report shows
    commands     ``dfact fit gom`` and ``dfact select gom``

The hunt itself is in :mod:`dfact.linalg`: ``kmeans`` with ``nearest_rows``, the default; ``vertex_hunting`` otherwise.
"""
