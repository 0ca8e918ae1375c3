"""The leaderboard: ranked systems, together with the scores of the BERT paper."""
