"""params.yaml: the typed settings of every stage."""
