"""The corpus stage turns raw dumps, tables and books into clean, deduplicated documents of sentences."""
