"""Pre-training objectives and their heads."""
