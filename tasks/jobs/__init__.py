"""Training jobs on this machine: launching, supervision, worker pool, resources, faults, logs."""
