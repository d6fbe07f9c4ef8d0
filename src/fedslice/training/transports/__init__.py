"""Carriers of messages between a server and clients. None of them knows a method."""
