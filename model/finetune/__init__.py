"""Fine-tuning of one encoder on one benchmark: `python -P -m model.finetune JOB.json`."""
