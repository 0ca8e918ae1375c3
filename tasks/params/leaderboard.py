"""The leaderboard's parameters."""

from __future__ import annotations

from model.common.config_base import Settings


class LeaderboardSettings(Settings):
    """What the leaderboard says beside the scores."""

    notes: tuple[str, ...] = ()
    """Sentences about the data or the runs that the page carries below its title."""
    champion: str = ""
    """The encoder that all others are compared with; empty takes the one with the best average."""
