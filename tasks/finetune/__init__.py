"""The fine-tuning stage: its parameters, the plan of its jobs, and the output made of their results."""
