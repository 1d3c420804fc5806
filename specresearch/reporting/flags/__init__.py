"""A decision as flags for vLLM, SGLang, TensorRT-LLM and llama.cpp: one module for each server."""

from collections.abc import Callable, Mapping

from specresearch.reporting.flags import llama_cpp, sglang, tensorrt_llm, vllm
from specresearch.reporting.flags.server import Server, ServerFlags, servers
from specresearch.reporting.speculation import Speculation

TRANSLATORS: Mapping[str, Callable[[Speculation], ServerFlags]] = {
    module.NAME: module.flags for module in (vllm, sglang, tensorrt_llm, llama_cpp)
}

__all__ = ["TRANSLATORS", "Server", "ServerFlags", "servers"]
