"""Models: one package for each family of factorizations.

Imports linear algebra and everything below it, never Dask. A family has a problem (its objective), passes (the step of one block),
a solver (the loop over passes) and an estimator (scikit-learn's contract). Families do not import each other.

    bounded_nmf        ICQF and NMF
    gom                GradeOfMembership
    binomial           memberships by binomial likelihood, for the two of them
    expectile          ExpectileMF
    cp                 ElasticCP and CPALS
    pca                PCA
    estimator          the base of all estimators; scikit_learn is its interface
    fit_task           a fit that is checked and planned, before anything runs, and its end
    row_factors, lazy_transform  factors of rows in memory, in a store, or as a Dask array
    traits             facts about a model that other rooms ask for
    persistence        saving and loading; fitted_schema declares what is saved
    provenance, item_tests  records that accompany a model: selection, stability, tests of items
"""
