"""The code version of each stage: part of every job's digest, and in a project's versions.yaml a DVC parameter.

Bump a stage's number when a change makes it give other outputs from the same inputs; a comment, a speed-up or a new
option that is off bumps nothing. tests/test_golden.py fails when outputs change and nobody bumped. Then run
`cloze upgrade` in the clone, which is a project, too.
"""

corpus = 2
tokenizer = 1
tokens = 1
pretrain = 4
finetune = 6
leaderboard = 6
