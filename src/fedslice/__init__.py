"""Federated learning in which a client and the server exchange a slice of the model."""
