#!/usr/bin/env bash
# Every method at its default: alone, in `auto`'s shape, and under `goodput` with 1, 8 and 32 requests in flight. CNNDM and SHAREGPT name
# published files; METHODS, LOADS ("8 80" is 8 in flight and 80 requests), TEMPERATURES, DATASETS and ALONE=no choose a part. Further
# arguments are added to every run, e.g. repeats=4 or, after an interruption, resume=true. TABLE=no leaves the table of this folder alone.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${OUT:-outputs/defaults}
methods=${METHODS:-ngram,suffix,cascade,token_recycling,lookahead,draft_model,medusa,eagle,eagle3}
temperatures=${TEMPERATURES:-0,1}
loads=${LOADS:-"1 24,8 80,32 256"}
subdir='hydra.sweep.subdir=${hydra:runtime.choices.proposer}-temperature${sampling.temperature}'

alone() { # dataset, its file
    python -m specresearch.run -m +proposer="$methods" dataset="$1" dataset.path="$2" num_prompts=12 order=shuffled \
        sampling.temperature="$temperatures" "hydra.sweep.dir=$out/$1-alone" "$subdir" "${@:3}"
}

steered() { # dataset, its file, requests in flight, requests of a pass
    python -m specresearch.load -m +proposer="$methods" dataset="$1" dataset.path="$2" dataset.max_prompt_tokens=256 \
        sampling.temperature="$temperatures" sampling.max_new_tokens=96 sampling.ignore_eos=true length_spread=0.5 arrivals=closed_loop \
        arrivals.concurrency="$3" num_requests="$4" controller=goodput "compare=[]" "hydra.sweep.dir=$out/$1-$3" "$subdir" "${@:5}"
}

for dataset in ${DATASETS:-cnndm sharegpt}; do
    [[ $dataset == cnndm ]] && file=$CNNDM || file=$SHAREGPT
    [ "${ALONE:-yes}" = no ] || alone "$dataset" "$file" "$@"
    while read -r -d, concurrency num_requests; do
        steered "$dataset" "$file" "$concurrency" "$num_requests" "$@"
    done <<< "$loads,"
done
[ "${TABLE:-yes}" = no ] || python experiments/defaults/table.py "$out"
