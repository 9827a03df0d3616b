"""Psychometrics: the statistics of items and scales of questionnaires, for models and on their own.

Imports linear algebra and everything below it. Most modules are passes over the rows, or mathematics of a correlation matrix.

    description          describe: distributions of items, reliability of scales, adequacy for a factor analysis
    answer_sums          the sums that a description needs, and their memory plan
    scale_statistics     the figures of a scale, and of all items together
    item_sums            distributions of single items
    correlation          correlations with missing answers
    polychoric           polychoric correlations of ordered answers, by tables of all pairs of items
    reliability          reliability of scales, omega, KMO and Bartlett's test, from covariances and correlations
    alpha_jackknife      standard error of Cronbach's alpha, by leaving out each row
    minres               minimum-residual factor analysis of a correlation matrix
    fit_indices          fit of a factor model, and the reliability of its scores
    factor_retention     numbers of factors by parallel analysis, MAP and BIC
    anchor               impact on the factors and effects on single items, of differences between groups
    mantel               Mantel's test of differential item functioning, by counts in strata
    dif                  tests of items for a difference between groups that agree in the factors
    group_sums           differences of items and covariances within groups, by parts of the rows
"""
