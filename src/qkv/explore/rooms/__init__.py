"""The rooms, each with its actions. A module is imported at its first request."""
