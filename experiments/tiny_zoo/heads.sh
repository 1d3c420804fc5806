#!/usr/bin/env bash
# Trains the drafters of the zoo's targets: DATA holds the text of the pair, WORK is scratch space outside the repository.
# Names of drafters as arguments train those alone. A run that was stopped goes on where it was, and a finished one is kept:
# after a change of a recipe, WORK must be new. DEEP names another folder of the deep target than the zoo's.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH=.

prompts() { # file, then options of prompts.py
    [ -f "$1" ] || python experiments/tiny_zoo/prompts.py --data "$DATA" --output "$1" "${@:2}"
}

distill() { # name, then what makes it
    local run=$WORK/$1 resume=false
    [ -f "$run/student/config.json" ] && return
    [ -d "$run" ] && resume=true
    python -m specresearch.distill dataset=sharegpt target.dtype=bfloat16 train.save_every=100 evaluation.num_texts=48 \
        evaluation.num_prompts=12 "hydra.run.dir=$run" "resume=$resume" "${@:2}"
}

replies=(corpus.predict_prompts=true corpus.generation.temperature=0.7 corpus.generation.batch_size=32
    corpus.generation.shard_size=256 train.batch_size=1)

draft() { # name, then what makes it
    prompts "$WORK/prompts.json"
    distill "$1" +proposer=draft_model "${replies[@]}" "dataset.path=$WORK/prompts.json" "corpus.folder=$WORK/corpus" corpus.max_len=1024 \
        corpus.generation.max_new_tokens=128 train.accumulate=8 train.warmup_steps=30 train.evaluate_every=300 "${@:2}"
}

long() {
    prompts "$WORK/prompts_long.json" --long --repeats "$WORK/repeats.txt"
}

head() { # name, then what makes it; many small steps, on texts as long as those decoded
    long
    distill "$1" "${replies[@]}" "dataset.path=$WORK/prompts_long.json" "corpus.folder=$WORK/corpus_${1%%_*}" corpus.max_len=2048 \
        corpus.generation.max_new_tokens=256 train.accumulate=2 train.warmup_steps=100 train.evaluate_every=1000 "${@:2}"
}

copying() { # name, then what makes it; short spans of words that are repeated, from which a new head learns to copy
    long
    distill "$1" "dataset.path=$WORK/prompts_long.json" corpus=text "corpus.text_files=[$WORK/repeats.txt]" corpus.max_len=256 \
        corpus.generation.max_new_tokens=64 train.batch_size=4 train.warmup_steps=30 train.evaluate_every=1000 train.steps=1500 "${@:2}"
}

staged() { # name, steps of its last two stages, rate of the first two, then what makes it
    copying "$1_copying" "${@:5}" proposer.head=null student.num_steps=1 "train.learning_rate=$4"
    head "$1_first" "${@:5}" "proposer.head=$WORK/$1_copying/student" student.num_steps=2 "train.learning_rate=$4" "train.steps=$2"
    # what is drafted third and later learns in the last stage
    head "$1" "${@:5}" "proposer.head=$WORK/$1_first/student" student.num_steps=5 train.learning_rate=1e-3 "train.steps=$3"
}

mixed() { # name, ending in _mixed, then what makes it; goes on from the drafter without it, with replies of which half are greedy
    head "$1" "${@:2}" "proposer.head=$WORK/${1%_mixed}/student" "corpus.folder=$WORK/corpus_${1%%_*}_mixed" \
        corpus.generation.greedy_share=0.5 student.num_steps=5 train.learning_rate=1e-3 train.steps=1600
}

eagle=(+proposer=eagle student.token_weight=1)
medusa=(+proposer=medusa proposer.head=null student.num_heads=4 student.own_lm_head=false train.learning_rate=2e-3)
eagle3=(+proposer=eagle3)
deep=("target.model=${DEEP:-zoo:deep}" dataset.limit=2000 dataset.shuffle=true)

[ $# -gt 0 ] || set -- tiny_draft_distilled tiny_eagle tiny_medusa tiny_eagle3 deep_eagle deep_medusa deep_eagle3
for drafter in "$@"; do
    case $drafter in
    tiny_draft_distilled) draft $drafter draft=zoo:tiny_draft train.learning_rate=5e-4 train.steps=800 ;;
    tiny_eagle) staged $drafter 3000 3000 2e-3 "${eagle[@]}" ;;
    tiny_medusa) head $drafter "${medusa[@]}" train.steps=5000 ;;
    tiny_eagle3) staged $drafter 6000 6000 3e-3 "${eagle3[@]}" 'proposer.layer_ids=[2,5,8]' ;;
    deep_eagle) staged $drafter 900 2400 2e-3 "${eagle[@]}" "${deep[@]}" ;;
    deep_eagle_mixed) mixed $drafter "${eagle[@]}" "${deep[@]}" ;;
    deep_medusa) head $drafter "${medusa[@]}" train.steps=2500 "${deep[@]}" ;;
    deep_eagle3) staged $drafter 900 2400 3e-3 "${eagle3[@]}" 'proposer.layer_ids=[2,16,32]' "${deep[@]}" ;;
    *) echo "$drafter is not a drafter of the zoo" >&2; exit 2 ;;
    esac
done
