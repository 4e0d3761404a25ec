"""Models in numbers: what their layers cost in memory, traffic and arithmetic."""
