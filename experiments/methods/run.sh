#!/usr/bin/env bash
# Every method on real prompts. CNNDM and SHAREGPT name published files, TEMPERATURES a list (0,1). Further arguments are added to every
# run, e.g. num_prompts=4 or resume=true.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${OUT:-outputs/methods}
methods=ngram,suffix,cascade,token_recycling,lookahead,layer_skip,draft_model,medusa,eagle,eagle3

measure() { # dataset, its file
    python -m specresearch.run -m +proposer=$methods dataset="$1" dataset.path="$2" num_prompts=12 order=shuffled verify_greedy=true \
        "sampling.temperature=${TEMPERATURES:-0,1}" "hydra.sweep.dir=$out/$1" 'hydra.sweep.subdir=${hydra:runtime.choices.proposer}-temperature${sampling.temperature}' "${@:3}"
}

measure cnndm "$CNNDM" "$@"
measure sharegpt "$SHAREGPT" "$@"
python experiments/methods/table.py "$out"
