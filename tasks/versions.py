"""The code version of each stage: a DVC parameter, and part of every job's digest.

Bump a stage's number when a change makes it give other outputs from the same inputs; a comment, a speed-up or a new
option that is off bumps nothing. tests/test_golden.py fails when outputs change and nobody bumped.
"""

corpus = 2
tokenizer = 1
tokens = 1
pretrain = 4
finetune = 6
leaderboard = 6
