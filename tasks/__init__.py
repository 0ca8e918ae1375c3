"""What one step does: a file per step, plain functions that Prefect tasks wrap."""
