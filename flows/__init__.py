"""What runs, when and where: the flows and the command line."""
