"""Ahead-of-time compilation of generated kernels for GPUs that need not be there."""

from __future__ import annotations

from kgen.aot.compile import compile_module, compile_modules, record_launches
from kgen.aot.model import DEVICES, CompiledKernel, CompileError, Failure, Launch, Report, Resources

__all__ = [
    "DEVICES",
    "CompileError",
    "CompiledKernel",
    "Failure",
    "Launch",
    "Report",
    "Resources",
    "compile_module",
    "compile_modules",
    "record_launches",
]
