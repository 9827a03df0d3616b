"""Comparison of groups of participants: their factors, and the items that favour one of them.

groups               the comparison
factor_congruences   congruences of the factors, with their fits
congruence_tests     their test against equal loadings, and their intervals
equal_loadings       the simulated groups of that test
item_screens         the screen of items by Mantel's test
item_effects         the anchored tests of items
"""
