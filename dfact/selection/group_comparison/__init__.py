"""Comparison of groups of participants: their factors, and the items that function differently.

groups               the comparison
factor_congruences   congruences of the factors, with their fits
congruence_tests     their test against equal loadings, and their intervals
equal_loadings       the simulated groups of that test
mantel_test          the groups, and Mantel's test of the items
item_effects         the anchored tests of items
"""
