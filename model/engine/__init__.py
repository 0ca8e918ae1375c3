"""The training engine: trainer, checkpoints, distributed setup, speed and cost meters."""
