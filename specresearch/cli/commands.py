"""The commands, what each is for, and how it is used."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CommandHelp:
    """What help says about a command.

    Attributes:
        examples: Arguments, each a command that works as it stands or after earlier ones.
    """

    purpose: str
    examples: tuple[str, str]


COMMANDS = {
    "run": CommandHelp(
        "measure a method beside plain decoding",
        (
            "+proposer=ngram dataset=cnndm",
            "+proposer=draft_model dataset=sharegpt batch_size=8 sampling.temperature=1",
        ),
    ),
    "load": CommandHelp(
        "measure a method under load",
        (
            "+proposer=ngram arrivals.qps=4",
            "+proposer=draft_model arrivals=closed_loop arrivals.concurrency=8 'compare=[1,2,5]'",
        ),
    ),
    "serve": CommandHelp(
        "serve a method to clients of OpenAI's API",
        (
            "+proposer=ngram server.port=8000",
            "+proposer=draft_model max_running=32 controller=goodput",
        ),
    ),
    "report": CommandHelp(
        "write one page from any set of runs: should speculation be turned on?",
        ("outputs", "outputs --ttft 0.5 --tpot 0.05"),
    ),
    "table": CommandHelp(
        "print measured settings as a Markdown, LaTeX, CSV or text table",
        ("outputs --sort speedup", "outputs --format latex --columns method,speedup,unchanged"),
    ),
    "simulate": CommandHelp(
        "answer what-if questions from a recording",
        (
            "recording=rec arrivals=poisson arrivals.qps=2 controller=goodput",
            "-m recording=rec arrivals=closed_loop arrivals.concurrency=1,8,32 'compare=[2,4]'",
        ),
    ),
    "penalty": CommandHelp(
        "measure what quantising targets and drafts costs in acceptance and speed",
        (
            "'targets=[fp32,int8]' 'drafts=[fp32,int8,int4]'",
            "proposer.draft=self 'targets=[bf16]' 'drafts=[int8,int4]' num_prompts=12",
        ),
    ),
    "plan": CommandHelp(
        "say what fits on given GPUs, and from which acceptance on drafting pays",
        (
            "target=llama3_1_8b gpu=h100",
            "target=llama3_1_70b +proposer=draft_model gpu=2xh100 context=4096",
        ),
    ),
    "certify": CommandHelp(
        "prove that a method leaves the distribution of the output as it is",
        (
            "+proposer=ngram acceptance=rejection",
            "-m +proposer=ngram,suffix acceptance=rejection,block",
        ),
    ),
    "layers": CommandHelp(
        "choose the layers that a target skips to draft for itself",
        ("output=layers.json", "dataset=sharegpt num_prompts=16 max_share=0.75"),
    ),
    "tree": CommandHelp(
        "choose the draft tree that would have been fastest",
        ("run=outputs/tree", "run=outputs/tree max_draft_tokens=32 output=paths.json"),
    ),
    "distill": CommandHelp(
        "train a drafter towards its target",
        (
            "+proposer=draft_model draft=zoo:tiny_draft dataset=sharegpt train.steps=200",
            "+proposer=eagle proposer.head=null dataset=sharegpt corpus=fixed",
        ),
    ),
    "export": CommandHelp(
        "write a trained head as serving engines read it",
        (
            "head=zoo:tiny_eagle format=eagle output=exported",
            "head=zoo:tiny_medusa format=medusa output=exported_medusa pickle=true",
        ),
    ),
    "bench_gpu": CommandHelp(
        "measure what one GPU makes of the engine, in under nine minutes",
        ("--rehearse", "--only roofline,decoding --minutes 4"),
    ),
}
