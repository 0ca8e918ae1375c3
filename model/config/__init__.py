"""All options of encoders and training: shapes, pre-training, fine-tuning, hardware."""
