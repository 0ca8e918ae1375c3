"""Prediction files, embeddings files, and the GLUE submission zip."""
