"""Local servers: Prefect, MLflow and the worker of `cloze up`."""
