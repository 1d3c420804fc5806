"""Names of the machine and versions of packages, for provenance and for what is kept by machine."""

import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

import torch


def package_version(package: str) -> str | None:
    """Return the installed version, or None if the package is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cpu_model() -> str:
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model()
