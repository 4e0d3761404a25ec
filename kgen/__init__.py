"""kgen: a kernel compiler for attention.

A spec file says what a model's attention is; kgen renders specialised Triton
source for it and proves that source against a reference derived from the same
spec. Importing this package imports neither torch nor triton.
"""

__version__ = "0.1.0"
