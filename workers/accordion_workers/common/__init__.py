"""What every process of the training side uses: errors, names, texts, the node's cache."""
