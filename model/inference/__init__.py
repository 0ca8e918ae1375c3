"""Inference: predictions, embeddings, and filled masks from published models."""
