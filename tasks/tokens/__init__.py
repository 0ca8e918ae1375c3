"""The tokenizer and tokens stages train the vocabulary and convert the corpus to tokens."""
