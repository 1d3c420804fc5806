#!/usr/bin/env bash
# Methods that need no training, at their defaults, on a real language model. METHODS and TEMPERATURES choose a part. Further
# arguments are added to every run, e.g. resume=true after an interruption.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${OUT:-outputs/gemma3_270m}
methods=${METHODS:-ngram,suffix,token_recycling,lookahead}
subdir='hydra.sweep.subdir=${hydra:runtime.choices.proposer}-temperature${sampling.temperature}'

for dataset in sharegpt cnndm; do
    python -m specresearch.run -m +proposer="$methods" dataset="$dataset" dataset.source=sample dataset.max_turns=1 \
        target=gemma3_270m target.dtype=bfloat16 sampling.temperature="${TEMPERATURES:-0,1}" sampling.max_new_tokens=96 \
        num_prompts=12 verify_greedy=true "hydra.sweep.dir=$out/$dataset" "$subdir" "$@"
done
python -m specresearch.table "$out" --format csv --output experiments/gemma3_270m/results.csv
python -m specresearch.table "$out"
