"""Linear algebra: singular vectors, K-means and vertex hunting by passes over row blocks.

Imports the engine and everything below it. Here are algorithms that several families of models need. They run passes on a
session and never see more than one block of rows.

    svd               leading singular vectors, and starts made of them
    wide_svd          the same for so many columns that their vectors are computed by tiles
    points, kmeans    points spread over the rows; K-means, and the rows nearest to its centres
    vertex_hunting    corners of a simplex or a cone
    minres            minimum-residual factor analysis of a correlation matrix
    rotation          varimax, promax and oblimin rotations of its loadings
    correlation       correlations with missing answers
    alpha_jackknife   standard error of Cronbach's alpha, by leaving out each row
    item_sums         distributions of single items
    reliability       reliability of scales, omega, KMO and Bartlett's test, from covariances and correlations
    polychoric        polychoric correlations of ordered answers, by tables of all pairs of items
    fit_indices       fit of a factor model, and the reliability of its scores
    anchor            impact on the factors and effects on single items, of differences between groups
    mantel            Mantel's test of differential item functioning, by counts in strata
    dif               tests of items for a difference between groups that agree in the factors
    group_sums        differences of items and covariances within groups, by parts of the rows
    factor_retention  numbers of factors by parallel analysis, MAP and BIC
"""
