"""``kgen bench``: kernels timed beside their peers and the ceilings of the GPU, in one process.

What is measured stands in ``workloads``, how in ``timing``, and what comes of it in ``record``. Only the modules that
measure import torch; a record is read, compared and drawn without it.
"""
