"""The proof: generated kernels against the reference, under hostile memory and hostile values."""

import os

# The interpreter multiplies tiles so small that threads of numpy's BLAS cost many times what they save.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
