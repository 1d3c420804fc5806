#!/usr/bin/env bash
# Methods that need no training, on a real language model. Further arguments are added to every run,
# e.g. resume=true after an interruption.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${OUT:-outputs/gemma3_270m}

measure() { # method, dataset
    python -m specresearch.run -m +proposer="$1" dataset="$2" dataset.source=sample \
        dataset.max_turns=1 target=gemma3_270m target.dtype=bfloat16 sampling.temperature=0,1 \
        sampling.max_new_tokens=96 num_prompts=12 verify_greedy=true "hydra.sweep.dir=$out/$1-$2" \
        "${@:3}"
}

measure ngram cnndm "$@"
measure ngram sharegpt "$@"
measure suffix sharegpt "$@"
measure token_recycling sharegpt "$@"
python -m specresearch.table "$out" --format csv --output experiments/gemma3_270m/results.csv
python -m specresearch.table "$out"
