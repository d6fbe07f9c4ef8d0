"""The environment of a run: enough to explain a last digit that differs, nothing about the person who ran it."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

_PACKAGES = ("fedslice", "torch", "numpy", "scipy", "polars", "pydantic", "safetensors", "flwr", "ray")


def describe() -> dict[str, Any]:
    """The software and hardware of this process, as JSON-able values.

    User name, host name and paths stay out, so that a run directory can be published as it is.
    """
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": _versions(),
        "cpu": _cpu_name(),
        "cpu_count": os.cpu_count(),
        "cpu_instructions": torch.backends.cpu.get_cpu_capability(),
        "torch_threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue  # an extra that is not installed took no part in the run
    return found


def _cpu_name() -> str:
    """The processor's trade name; `platform.processor()` is empty on most Linux systems."""
    table = Path("/proc/cpuinfo")
    if table.exists():
        for line in table.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
