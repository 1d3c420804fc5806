"""Records that the tests of all trackers log."""

from specresearch.metrics import Counts, RequestRecord, StepRecord
from specresearch.metrics.times import StepTimes

STEP = StepRecord(
    request_ids=("p/0",),
    num_draft_tokens=(4,),
    draft_depth=(4,),
    num_accepted_tokens=(3,),
    num_new_tokens=(4,),
    context=(9,),
    expected_acceptance=None,
    num_nodes=5,
    times=StepTimes(0.001, 0.002, 0.0, 0.0, 0.004),
)
REQUEST = RequestRecord(
    id="p/0",
    num_prompt_tokens=9,
    counts=Counts(5, 4, 16, 12, 17),
    finish_reason="length",
    ttft=0.1,
    tpot=0.01,
    e2el=0.3,
    itl=(0.01, 0.0, 0.02),
    prefill_time=0.05,
)
