"""Training jobs: launching, supervision, worker pool, resources, faults, logs."""
