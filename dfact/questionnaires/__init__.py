"""Questionnaires, a slice: items and scales, factor analysis, comparisons of groups, and tables for papers.

Imports everything but other slices, which may not be there. Most modules are passes over the rows, or mathematics of a correlation matrix.

    description          describe: distributions of items, reliability of scales, adequacy for a factor analysis
    answer_sums          the sums that a description needs, and their memory plan
    scales               which items make up the scales, and which of them are reversed
    scale_statistics     the figures of a scale, and of all items together
    item_sums            distributions of single items
    polychoric           polychoric correlations of ordered answers, by tables of all pairs of items
    reliability          reliability of scales, omega, KMO and Bartlett's test, from covariances and correlations
    alpha_jackknife      standard error of Cronbach's alpha, by leaving out each row
    minres               minimum-residual factor analysis of a correlation matrix
    rotation             varimax, promax and oblimin rotations of loadings, and rotations to a target
    fit_indices          fit of a factor model, and the reliability of its scores
    retention            numbers of factors by parallel analysis, MAP and BIC
    tables               items and scales as a csv file, an Excel workbook or an HTML page
    factor_analysis      FactorAnalysis, the choice of its number of factors, and its presenter
    groups               congruence of factors between groups, and items that function differently
    apa                  tables for papers, in the style of the American Psychological Association
    kernels              loops over tables of pairs of items, over strata, and of the oblimin rotation
    commands             dfact describe, dfact compare, dfact fit fa and dfact select fa
"""
