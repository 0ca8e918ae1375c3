"""Local servers (Prefect, MLflow, worker), and maintenance commands: doctor, gc, dry run."""
