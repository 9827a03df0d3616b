"""Genotypes as datasets, with a row for each individual.

genotypes   import_genotypes: the variants of a file become columns, panel by panel
population  the populations of the individuals
"""
