"""Pre-training of one encoder: `python -P -m model.pretrain RUN.json`."""
