"""Tensors: the number of components of a CP decomposition.

solution_path      along the solution path
replicability      by fits to other rows
tensor_selection   any of these, for the command
factor_match       matching of the components of two decompositions
"""
