"""One flow per stage of dvc.yaml."""
