"""Jobs on other machines: Slurm and Kubernetes launchers, gangs of ranks, and nodes of a Dask cluster."""
