"""What the parts of a recipe are written in: messages and their encodings."""
