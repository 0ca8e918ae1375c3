"""Orchestration: the Prefect flows and the command line."""
