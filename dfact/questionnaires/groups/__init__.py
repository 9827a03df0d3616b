"""Comparison of groups of participants: their factors, and the items that function differently.

comparison           the comparison
factor_congruences   congruences of the factors, with their fits
congruence_tests     their test against equal loadings, and their intervals
fits                 fits to the rows of single groups, and to resamples of them
equal_loadings       the simulated groups of that test
mantel_test          the groups, and Mantel's test of the items
item_effects         the anchored tests of items
mantel               Mantel's test of differential item functioning, by counts in strata
dif                  tests of items for a difference between groups that agree in the factors
sums                 differences of items and covariances within groups, by parts of the rows
"""
