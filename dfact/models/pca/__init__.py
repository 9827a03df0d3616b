"""Principal component analysis: PCA.

estimator   the steps of a fit, the projection of new rows, the checks
spectrum    centring and scaling of the columns, and the components of complete or mean-filled data
expectation the EM algorithm of probabilistic PCA, for missing entries
passes      the step of one block: moments of columns, expected scores, sums of the EM algorithm
number      the number of components: an integer, a share of the variance, or all
footprint   the memory of a fit
"""
