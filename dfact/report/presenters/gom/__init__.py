"""Texts and plots of a grade of membership."""
