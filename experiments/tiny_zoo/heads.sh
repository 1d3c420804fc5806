#!/usr/bin/env bash
# Trains the drafters of the tiny target: DATA holds the text of the pair, WORK is scratch space outside the repository.
# Names of drafters as arguments train those alone. A run that was stopped goes on where it was.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH=.
[ -f "$WORK/prompts.json" ] || python experiments/tiny_zoo/prompts.py --data "$DATA" --output "$WORK/prompts.json"

distill() { # name, then what makes it
    local run=$WORK/$1 resume=false
    [ -f "$run/student/config.json" ] && return
    [ -d "$run" ] && resume=true
    python -m specresearch.distill dataset=sharegpt "dataset.path=$WORK/prompts.json" "corpus.folder=$WORK/corpus" corpus.max_len=1024 \
        corpus.predict_prompts=true corpus.generation.temperature=0.7 corpus.generation.max_new_tokens=128 \
        corpus.generation.batch_size=32 corpus.generation.shard_size=256 target.dtype=bfloat16 train.batch_size=1 train.accumulate=8 \
        train.warmup_steps=30 train.evaluate_every=300 train.save_every=100 evaluation.num_texts=48 evaluation.num_prompts=12 \
        "hydra.run.dir=$run" "resume=$resume" "${@:2}"
}

stage() { # of an EAGLE-3 head: name, what it begins with, drafting steps unrolled, optimiser steps, learning rate
    distill "$1" +proposer=eagle3 "proposer.head=$2" 'proposer.layer_ids=[2,5,8]' "student.num_steps=$3" "train.steps=$4" \
        "train.learning_rate=$5" train.accumulate=2 train.evaluate_every=1000
}

[ $# -gt 0 ] || set -- tiny_draft_distilled tiny_medusa tiny_eagle tiny_eagle3
for drafter in "$@"; do
    case $drafter in
    tiny_draft_distilled) distill $drafter +proposer=draft_model draft=zoo:tiny_draft train.learning_rate=5e-4 train.steps=800 ;;
    tiny_medusa) distill $drafter +proposer=medusa proposer.head=null student.num_heads=4 student.own_lm_head=false \
        train.learning_rate=2e-3 train.steps=700 ;;
    tiny_eagle) distill $drafter +proposer=eagle proposer.head=null student.num_steps=2 student.token_weight=1 \
        train.learning_rate=2e-3 train.steps=1000 ;;
    tiny_eagle3) # many small steps; what is drafted third and later learns in the last stage
        stage eagle3_first null 2 4000 1e-3
        stage eagle3_second "$WORK/eagle3_first/student" 2 8000 3e-3
        stage $drafter "$WORK/eagle3_second/student" 5 1200 1e-3 ;;
    *) echo "$drafter is not a drafter of the zoo" >&2; exit 2 ;;
    esac
done
