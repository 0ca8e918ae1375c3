"""The leaderboard: what was measured, ranked, beside what the paper printed."""
