"""The specifications of the commands of each family of models: ``SPECS`` in the module with the family's name."""
