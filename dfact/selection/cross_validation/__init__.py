"""Cross-validation: fits to a part of the entries, and their errors on the others.

block_cross_validation   for any model: blocks of rows and columns are held out
entry_cross_validation   for admixture: folds of single entries
folds, masks             which entries are held out, and the data without them
fold_fits                the fits of a fold
entry_fits               fits to the entries that a mask leaves, for expectiles and for admixture
squared_errors           sums of the errors of held-out blocks
"""
