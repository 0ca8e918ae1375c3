"""The tokenizer and tokens stages: vocabulary training and token arrays."""
