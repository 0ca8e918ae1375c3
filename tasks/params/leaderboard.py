"""Parameters of the leaderboard."""

from __future__ import annotations

from model.common.config_base import Settings


class LeaderboardSettings(Settings):
    """Notes and the reference system of the leaderboard."""

    notes: tuple[str, ...] = ()
    """Sentences about the data or the runs, shown below the title of the page."""
    champion: str = ""
    """The reference: the encoder that all others are compared with; empty for the one with the best average."""
