"""Optimizers, learning-rate schedules, master weights, step skipping, sharded state."""
