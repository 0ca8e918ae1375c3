"""Metrics and official scorers."""
