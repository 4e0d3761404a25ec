"""The spec, executed: what the generated kernels are judged against."""
