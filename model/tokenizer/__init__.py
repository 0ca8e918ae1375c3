"""WordPiece: vocabulary files, special tokens, and fast tokenization with a word cache."""
