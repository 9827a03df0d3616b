"""Principal component analysis: PCA.

estimator   the steps of a fit, the projection of new rows, the checks
spectrum    centring and scaling of the columns, the components of complete or mean-filled data, and how many there are
expectation the EM algorithm of probabilistic PCA, for missing entries
passes      the step of one block: moments of columns, expected scores, sums of the EM algorithm
footprint   the memory of a fit
number_of_components   the choice of a number, by parallel analysis or held-out entries
presenter   what a report shows
commands    ``dfact fit pca`` and ``dfact select pca``
"""
