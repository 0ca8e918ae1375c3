"""Fine-tuning heads: features, modules, losses and predictions."""
