"""The vocabulary in which parts are written: slices, updates, messages, memories."""
