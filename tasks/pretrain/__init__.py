"""The pre-training stage: jobs per encoder, and checkpoints mirrored to S3."""
