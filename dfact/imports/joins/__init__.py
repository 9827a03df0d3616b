"""Datasets made from datasets.

join          join_datasets: questionnaires with overlapping participants side by side
participants  confounders and weights of the participants of several datasets
indicators    expand_categories: a column for each category of a nominal item
group_tensor  stack_groups: a tensor of groups × participants × items
"""
