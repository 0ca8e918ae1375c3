"""The corpus stage: raw dumps, tables and books to documents of sentences, without markup, duplicates or scraps."""
