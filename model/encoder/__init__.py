"""The transformer encoder: embeddings, attention, layers, initialization, FLOPs."""
