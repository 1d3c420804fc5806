"""Checks that a target and a draft share a vocabulary; otherwise the drafts would just be bad."""

import warnings

from transformers import PreTrainedTokenizerBase

from specresearch.models.causal_lm import CausalLM

USUAL_RATIO = (3.0, 500.0)


class PairMismatchError(ValueError):
    """Target and draft cannot draft and verify together."""


def check_pair(target: CausalLM, draft: CausalLM) -> None:
    """Warn about an unusual pair.

    Raises:
        PairMismatchError: If token ids mean different things, or the draft's context is shorter.
    """
    if target.tokenizer is not None and draft.tokenizer is not None:
        check_tokenizers(target.tokenizer, draft.tokenizer)
        known = len(target.tokenizer)
        if draft.vocab_size < known:
            raise PairMismatchError(
                f"the draft's embedding has {draft.vocab_size} rows and the shared tokenizer "
                f"{known} tokens; use a draft of the same family"
            )
    elif target.vocab_size != draft.vocab_size:
        raise PairMismatchError(
            f"target and draft have vocabularies of {target.vocab_size} and {draft.vocab_size} and "
            "no tokenizers to compare; load both with their tokenizers"
        )
    if draft.max_len < target.max_len:
        raise PairMismatchError(
            f"the draft reaches {draft.max_len} tokens and the target is set to {target.max_len}; "
            f"set target.max_len={draft.max_len} or use a draft with a longer context"
        )
    check_models(target, draft)


def check_models(target: CausalLM, draft: CausalLM) -> None:
    """Warn about a draft that is larger than the target, or hardly smaller.

    Raises:
        PairMismatchError: If both are one object.
    """
    if draft is target:
        raise PairMismatchError(
            "draft and target are one CausalLM and would overwrite each other's cache; "
            "load the draft separately"
        )
    if draft.weights != target.weights:
        return  # bytes decide, not parameters
    ratio = target.num_parameters / draft.num_parameters
    if ratio < 1:
        warnings.warn(
            f"the draft has {draft.num_parameters:,} parameters and the target "
            f"{target.num_parameters:,}; are they swapped?",
            stacklevel=3,
        )
    elif not USUAL_RATIO[0] <= ratio <= USUAL_RATIO[1]:
        warnings.warn(
            f"the target is {ratio:.1f} times the draft; pairs that pay lie mostly between "
            f"{USUAL_RATIO[0]:g} and {USUAL_RATIO[1]:g}",
            stacklevel=2,
        )


def check_tokenizers(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> None:
    """Require that every token, special ones included, has the same id in both tokenizers.

    Raises:
        PairMismatchError: Names the first token that differs.
    """
    target_ids, draft_ids = target.get_vocab(), draft.get_vocab()
    if target_ids != draft_ids:
        differing = {token for token, _ in target_ids.items() ^ draft_ids.items()}

        def order(token: str) -> tuple[int, str]:
            return min(target_ids.get(token, 1 << 60), draft_ids.get(token, 1 << 60)), token

        token = min(differing, key=order)
        raise PairMismatchError(
            f"tokenizers differ in {len(differing)} tokens: the draft maps {token!r} to "
            f"{draft_ids.get(token, 'nothing')}, the target to "
            f"{target_ids.get(token, 'nothing')}; use "
            "proposer=draft_model_other_tokenizer, or a draft of the target's own family"
        )
    for name in ("bos_token_id", "eos_token_id"):
        if getattr(target, name) != getattr(draft, name):
            warnings.warn(
                f"{name} is {getattr(target, name)} for the target and {getattr(draft, name)} for "
                "the draft",
                stacklevel=3,
            )
