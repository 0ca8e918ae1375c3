"""Speed and quality beside peers; never imported by the rest."""
