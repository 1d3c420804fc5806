#!/usr/bin/env bash
# The grid: two methods, two datasets, two temperatures, five loads. CNNDM and SHAREGPT name published files. Further arguments are
# added to every run, e.g. repeats=1 or, after an interruption, resume=true. DATASETS=cnndm measures that dataset alone, so that two cores
# can measure both at once, with OMP_NUM_THREADS=1.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${OUT:-outputs/load}

measure() { # dataset, its file, requests in flight, requests of a pass
    python -m specresearch.load -m +proposer=ngram,draft_model dataset="$1" dataset.path="$2" dataset.max_prompt_tokens=256 \
        sampling.temperature=0,1 sampling.max_new_tokens=96 sampling.ignore_eos=true length_spread=0.5 arrivals=closed_loop \
        arrivals.concurrency="$3" num_requests="$4" controller=goodput +variants.bounded.max_slowdown=1.05 "compare=[1,2,5,10]" ++proposer.num_draft_tokens=10 \
        "hydra.sweep.dir=$out/$1-$3" \
        'hydra.sweep.subdir=${hydra:runtime.choices.proposer}-temperature${sampling.temperature}' "${@:5}"
}

for load in "1 48" "4 48" "8 80" "16 128" "32 256"; do
    read -r concurrency num_requests <<< "$load"
    for dataset in ${DATASETS:-cnndm sharegpt}; do
        [[ $dataset == cnndm ]] && path=$CNNDM || path=$SHAREGPT
        measure "$dataset" "$path" "$concurrency" "$num_requests" "$@"
    done
done
python experiments/load/table.py "$out"
python -m specresearch.report "$out" --output "$out/report"
