"""The project directory and the process environment: workspaces, locks, signals, progress, logging."""
