"""The leaderboard: measured systems, ranked, together with the scores of the BERT paper."""
