"""Corpus sources: one reader per input format, and text cleaning."""
