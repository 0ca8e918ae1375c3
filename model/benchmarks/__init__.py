"""Downstream tasks: one table of rows, a reader per file format, features, metrics and official scorers."""
