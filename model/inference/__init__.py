"""Inference with published models: predictions, embeddings and masked words."""
