"""MLflow tracking: entries on disk, and the forwarder that sends them."""
