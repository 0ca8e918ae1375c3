"""Corpus filters for language, quality, repetition, duplicates and benchmark contamination."""
