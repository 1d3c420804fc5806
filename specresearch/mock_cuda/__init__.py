"""A CUDA device that is pretended on a CPU, to test and count what code would ask of a real one."""

from specresearch.mock_cuda.activity import Activity, Wait
from specresearch.mock_cuda.device import DEVICE, MockCuda

__all__ = ["DEVICE", "Activity", "MockCuda", "Wait"]
