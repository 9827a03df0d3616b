"""Linear algebra by passes over row blocks: algorithms that several families of models need.

svd                singular vectors of the data and the NNDSVD start
points             rows as points: embedding, selection by number or by score
kmeans             K-means of directions, on a sample and then on all rows
vertex_hunting     vertices of the rows' simplex or cone
correlation        pairwise correlations and their smoothing
minres             common factors of a correlation matrix and their rotations
factor_retention   number of factors of a correlation matrix
"""
