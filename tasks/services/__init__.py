"""The servers that `cloze up` keeps on this machine: Prefect, MLflow and a worker."""
