"""Training data for pre-training: token store, sampling order, sentence pairs, masking, collation."""
