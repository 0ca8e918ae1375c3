"""Checkpoints of pre-training, mirrored to S3 while it runs, and taken from there on another machine.

Training knows nothing of it: a thread of the flow's process watches the folder of checkpoints. On S3 a checkpoint is

    <url>/<encoder>-<digest of the job>/step-00001000/{model.safetensors, optimizer.safetensors, state.json}
    <url>/<encoder>-<digest of the job>/step-00001000/digests.json    sent last: without it, there is no checkpoint
"""
