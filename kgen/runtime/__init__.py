"""Use of attention from Python, beside the generated modules."""
