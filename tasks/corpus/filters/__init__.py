"""Corpus filters: language, quality, repetition, duplicates, benchmark contamination."""
