"""The flags of llama.cpp's `llama-server`: `--spec-*`."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from specresearch.reporting.flags.missing import chain_note, fixed_note, missing
from specresearch.reporting.flags.server import ServerFlags, servers
from specresearch.reporting.speculation import Speculation

NAME = "llama_cpp"
TYPES = {"ngram": "ngram-simple", "draft_model": "draft-simple", "eagle3": "draft-eagle3"}
CLOSEST = {
    "suffix": "Closest is --spec-type ngram-mod, whose pool is shared by all requests.",
    "cascade": (
        "--spec-type takes a list, such as ngram-simple,draft-simple: the draft LM is asked where "
        "lookup finds nothing."
    ),
    "eagle": "It loads EAGLE-3 heads only: train one for the same target.",
}
GGUF = ".gguf"
CONVERT = "Convert {} with convert_hf_to_gguf.py{}."
CAP = "--parallel {} caps running requests there, and the others wait."
CONFIDENCE = (
    "Closest to the confidence controller is --spec-draft-p-min {}, with --spec-draft-n-max {}."
)
ONE_SIZE = (
    "ngram-simple looks for matches of one size ({}) only, and drafts nothing where it may draft "
    "fewer tokens than it matches."
)
DRAWS = (
    "llama.cpp drafts the likeliest tokens, not sampled ones, and keeps those that it then draws "
    "from the target: exact as well, but another acceptance than was measured. Compare "
    "proposer.sample=false."
)


def flags(speculation: Speculation) -> ServerFlags:
    """Return the command that starts llama-server with this speculation."""
    server = servers()[NAME]
    if speculation.method not in TYPES:
        return missing(server, speculation, CLOSEST.get(speculation.method, ""))
    command = ["llama-server", "--model", gguf(speculation.target)]
    command += ["--spec-type", TYPES[speculation.method]]
    if speculation.draft is not None:
        command += ["--spec-draft-model", gguf(speculation.draft)]
        command += ["--spec-draft-n-max", str(speculation.length)]
    else:
        command += ["--spec-ngram-simple-size-n", str(_match_size(speculation))]
        command += ["--spec-ngram-simple-size-m", str(speculation.length)]
    return ServerFlags(server, command, notes=list(_notes(speculation)))


def gguf(model: str) -> str:
    """Return the file that a model is converted to; a GGUF file as it is."""
    return model if model.endswith(GGUF) else f"{PurePosixPath(model).name}{GGUF}"


def _match_size(speculation: Speculation) -> int:
    return min(speculation.options.get("n_max", speculation.length), speculation.length)


def _notes(speculation: Speculation) -> Iterator[str]:
    if not speculation.target.endswith(GGUF):
        yield CONVERT.format(speculation.target, "")
    if speculation.draft is not None and not speculation.draft.endswith(GGUF):
        is_head = speculation.method == "eagle3"
        target = f" --target-model-dir {speculation.target}" if is_head else ""
        yield CONVERT.format(speculation.draft, target)
    if speculation.method == "ngram":
        yield ONE_SIZE.format(_match_size(speculation))
    if speculation.tree is not None:
        yield chain_note(servers()[NAME], speculation)
    if speculation.samples_drafts:
        yield DRAWS
    least = speculation.options.get("controller.min_confidence")
    if least is not None:
        yield CONFIDENCE.format(least, speculation.options["num_draft_tokens"])
    if speculation.stages:
        yield fixed_note(servers()[NAME], speculation)
    if speculation.off_above is not None:
        yield CAP.format(speculation.off_above)
