#!/usr/bin/env bash
# Every draft at hand for one real target, each at its default, in turns with plain decoding. SHAREGPT and CNNDM name published files;
# TARGET and OUT are a model and a folder; EAGLE3 is the head of the drafter eagle3. DRAFTERS, DATASETS, TEMPERATURES and BATCHES choose a
# part; a drafter's name that ends in _chain2 drafts two tokens, whether that pays or not. Arguments are added to every measurement, e.g.
# resume=true after an interruption.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${TARGET:-google/gemma-3-270m}
out=${OUT:-outputs/pairings}

settings() { # drafter: what makes it
    case $1 in
    *_chain2) echo "$(settings "${1%_chain2}") proposer.tree=chain proposer.num_draft_tokens=2" ;;
    other_tokenizer_*) echo "+proposer=draft_model_other_tokenizer draft=zoo:tiny_draft proposer.mode=${1#other_tokenizer_}" ;;
    self_*) echo "+proposer=draft_model proposer.draft=self proposer.draft.quantization=${1#self_}" ;;
    skipped_layers) echo "+proposer=layer_skip" ;;
    eagle3) echo "+proposer=eagle3 proposer.head=$EAGLE3" ;;
    *) echo "+proposer=$1" ;;
    esac
}

for batch in ${BATCHES:-1 8}; do
    for temperature in ${TEMPERATURES:-0 1}; do
        for dataset in ${DATASETS:-sharegpt cnndm}; do
            path=$SHAREGPT
            [ "$dataset" = cnndm ] && path=$CNNDM
            for drafter in ${DRAFTERS:-other_tokenizer_tli other_tokenizer_slem self_int8 self_int4 skipped_layers ngram suffix \
                token_recycling lookahead}; do
                read -ra made <<< "$(settings "$drafter")"
                python -m specresearch.run "${made[@]}" target=local "target.model=$target" target.max_len=1024 target.dtype=bfloat16 \
                    "dataset=$dataset" "dataset.path=$path" dataset.max_turns=1 dataset.max_prompt_tokens=256 \
                    "sampling.temperature=$temperature" "sampling.max_new_tokens=${TOKENS:-48}" "num_prompts=${PROMPTS:-8}" \
                    "batch_size=$batch" warmup=1 "hydra.run.dir=$out/$drafter/$dataset-t$temperature-b$batch" "$@"
            done
        done
    done
done
python experiments/pairings/table.py "$out"
