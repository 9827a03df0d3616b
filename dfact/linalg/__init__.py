"""Linear algebra: singular vectors, K-means and vertex hunting by passes over row blocks.

Imports the engine and everything below it. Here are algorithms that several families of models need. They run passes on a
session and never see more than one block of rows.

    svd               leading singular vectors, and starts made of them
    parts             connected parts of the columns of data with missing entries
    wide_svd          the same for so many columns that their vectors are computed by tiles
    row_points        the rows, or their coordinates, as points
    kmeans            K-means, and the rows nearest to its centres
    vertex_hunting    corners of a simplex or a cone
    congruence        Tucker's congruence of components
    correlation       correlations of columns with missing entries
    parallel_analysis the number of components by eigenvalues of unrelated data
    anchor            impact on the factors and effects on single items, of differences between groups
    several_tests     p values adjusted for their number
"""
