"""Starting training processes, watching them, and ending them."""
