"""Custom tasks: YAML files that become rows of the benchmark table."""
