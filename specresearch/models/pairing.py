"""Do a target and a draft really speak the same tokens? Asked before decoding, because the answer no looks like bad drafts."""

import warnings

from transformers import PreTrainedTokenizerBase

from specresearch.models.causal_lm import CausalLM

USUAL_RATIO = (3.0, 500.0)


class PairMismatchError(ValueError):
    """Target and draft do not share a vocabulary."""


def check_pair(target: CausalLM, draft: CausalLM) -> None:
    """Raises PairMismatchError when token ids mean different things; warns about an unusual pair."""
    if target.tokenizer is not None and draft.tokenizer is not None:
        check_tokenizers(target.tokenizer, draft.tokenizer)
        known = len(target.tokenizer)
        if draft.vocab_size < known:
            raise PairMismatchError(
                f"the draft's embedding has {draft.vocab_size} rows and the shared tokenizer {known} tokens; "
                "use a draft of the same family"
            )
    elif target.vocab_size != draft.vocab_size:
        raise PairMismatchError(
            f"target and draft have vocabularies of {target.vocab_size} and {draft.vocab_size} and no tokenizers to compare; "
            "load both with their tokenizers"
        )
    if draft.max_len < target.max_len:
        raise PairMismatchError(
            f"the draft reaches {draft.max_len} tokens and the target is set to {target.max_len}; "
            f"set target.max_len={draft.max_len} or use a draft with a longer context"
        )
    ratio = target.num_parameters / draft.num_parameters
    if ratio < 1:
        warnings.warn(
            f"the draft has {draft.num_parameters:,} parameters and the target {target.num_parameters:,}; are they swapped?",
            stacklevel=2,
        )
    elif not USUAL_RATIO[0] <= ratio <= USUAL_RATIO[1]:
        warnings.warn(
            f"the target is {ratio:.1f} times the draft; pairs that pay lie mostly between {USUAL_RATIO[0]:g} and "
            f"{USUAL_RATIO[1]:g}",
            stacklevel=2,
        )


def check_tokenizers(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> None:
    """Every token of either must have the same id in the other, special tokens included. Names the first that differs."""
    ours, theirs = target.get_vocab(), draft.get_vocab()
    if ours != theirs:
        differing = [
            token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token)
        ]
        token = min(differing, key=lambda t: (min(ours.get(t, 1 << 60), theirs.get(t, 1 << 60)), t))
        raise PairMismatchError(
            f"tokenizers differ in {len(differing)} tokens: the draft maps {token!r} to {theirs.get(token, 'nothing')}, the "
            f"target to {ours.get(token, 'nothing')}; no setting translates between them: use a draft of the target's own family"
        )
    for name in ("bos_token_id", "eos_token_id"):
        if getattr(target, name) != getattr(draft, name):
            warnings.warn(
                f"{name} is {getattr(target, name)} for the target and {getattr(draft, name)} for the draft",
                stacklevel=3,
            )
