"""The columns of a recording: a row per request and step."""

import pyarrow as pa

RECORDING = "recording.parquet"
NUM_TOP = 5  # of the target's likeliest tokens that are kept at every output token
TIMES = (
    "propose",
    "verify",
    "accept",
    "commit",
    "schedule",
    "total",
    "prefill",
    "lazy_prefill",
    "between",
)  # seconds, of the whole step
STRINGS = ("side", "request", "category", "sampling", "finish_reason")
COUNTS = (
    "repeat",
    "group",
    "step",
    "num_prompt_tokens",
    "position",
    "context",
    "num_nodes",
    "num_prefill_tokens",
    "num_waiting",
    "depth",
    "num_accepted",
    "num_draft_tokens",
    "num_lazy_prefill_tokens",
)
ID_LISTS = ("prompt_ids", "draft_ids", "parents", "path", "new_ids", "top_ids")
FLOAT_LISTS = ("p", "q", "scores", "expected", "new_p", "new_q", "new_logprobs", "top_logprobs")
COLUMN_TYPES = {
    **dict.fromkeys(STRINGS, pa.string()),
    **dict.fromkeys(COUNTS, pa.int32()),
    **dict.fromkeys((*TIMES, "start", "arrival"), pa.float64()),
}
LIST_TYPES = {
    **dict.fromkeys(ID_LISTS, pa.list_(pa.int32())),
    **dict.fromkeys(FLOAT_LISTS, pa.list_(pa.float32())),
}
SCHEMA = pa.schema(list((COLUMN_TYPES | LIST_TYPES).items()))
