"""Plan to source text."""
