#!/usr/bin/env bash
# Trains drafters for a pretrained target: an EAGLE-3 head, Medusa heads and a draft LM. DATA holds the text that prompts.py names,
# TARGET is the model's folder or hub id, WORK is scratch space outside the repository. Names of runs as arguments train those alone.
# What was stopped goes on where it was, and what is complete is not trained again.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${TARGET:-google/gemma-3-270m}
mkdir -p "$WORK"

prompts() { # number of the slice, its first row, its rows
    [ -f "$WORK/prompts-$1.json" ] && return
    python experiments/gemma3_270m/prompts.py --data "$DATA" --tokenizer "$target" --output "$WORK/prompts-$1.json" --begin "$2" --rows "$3"
}

keep_memory() { # for a command: glibc returns the memory of large arrays and takes it anew, page by page, unless it is told to keep it
    MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=20000000000 GLIBC_TUNABLES=glibc.malloc.hugetlb=1 "$@"
}

distill() { # name, slice of the prompts, then what makes it
    local run=$WORK/runs/$1 resume=false
    [ -f "$run/student/config.json" ] && return
    [ -d "$run" ] && resume=true
    python -m specresearch.distill dataset=prompts "dataset.path=$WORK/prompts-$2.json" "corpus.folder=$WORK/corpus-$2" \
        target=local "target.model=$target" target.max_len=640 target.dtype=bfloat16 corpus.max_len=640 corpus.predict_prompts=true \
        corpus.generation.temperature=0.8 corpus.generation.max_new_tokens=160 corpus.generation.batch_size=32 corpus.heldout_fraction=0.05 \
        train.batch_size=1 train.warmup_steps=30 train.evaluate_every=1000 train.save_every=50 evaluation.num_texts=16 \
        evaluation.num_prompts=8 evaluation.max_new_tokens=48 "hydra.run.dir=$run" "resume=$resume" "${@:3}"
}

eagle3() { # name, slice, what it begins with, drafting steps unrolled, optimizer steps, examples of a step
    keep_memory distill "$1" "$2" +proposer=eagle3 "proposer.head=$3" 'proposer.layer_ids=[2,9,15]' "student.num_steps=$4" "train.steps=$5" \
        "train.accumulate=$6" "${@:7}"
}

copying() { # name, what it begins with, optimizer steps; short spans of words that are repeated, from which a head learns to copy
    [ -f "$WORK/repeats.txt" ] || python experiments/gemma3_270m/repeats.py --data "$DATA" --output "$WORK/repeats.txt"
    eagle3 "$1" 1 "$2" 1 "$3" 1 corpus=text "corpus.text_files=[$WORK/repeats.txt]" corpus.folder=null corpus.max_len=256 \
        corpus.generation.max_new_tokens=64 train.batch_size=4 "${@:4}"
}

medusa() { # name, slice, what it begins with, optimizer steps
    keep_memory distill "$1" "$2" +proposer=medusa "proposer.head=$3" train.accumulate=4 "train.steps=$4" "${@:5}"
}

# The draft LM's arrays over all tokens would leave 12 GB of holes in memory that is kept.
draft() { # name, slice, what it begins with, optimizer steps, learning rate, share of plain text
    distill "$1" "$2" +proposer=draft_model "draft=$3" corpus=mix corpus.fixed=0 corpus.draft=0 "corpus.text=$6" \
        "corpus.target=$(python -c "print(1 - $6)")" "corpus.text_files=[$DATA/books/*.md,$DATA/tinystories_sample.txt]" \
        train.accumulate=4 "train.steps=$4" "train.learning_rate=$5"
}

prompts 1 0 640
prompts 2 640 2000
prompts 3 2640 4000
[ -d "$WORK/draft" ] || python experiments/gemma3_270m/draft.py --target "$target" --prompts "$WORK/prompts-2.json" --output "$WORK/draft"

trained() { echo "$WORK/runs/$1/student"; }

[ $# -gt 0 ] || set -- eagle3_a draft_a medusa_a eagle3_copies eagle3_copies_more eagle3_b draft_b medusa_b eagle3_c draft_c medusa_c
for run in "$@"; do
    case $run in
    eagle3_a) eagle3 "$run" 1 null 3 450 2 student.draft_vocab_size=12288 ;;
    eagle3_copies) copying "$run" "$(trained eagle3_a)" 1000 train.learning_rate=3e-3 ;;
    eagle3_copies_more) copying "$run" "$(trained eagle3_copies)" 1500 train.learning_rate=3e-3 ;;
    eagle3_b) eagle3 "$run" 2 "$(trained eagle3_copies_more)" 3 2800 2 "cache=$WORK/features-2" ;;
    eagle3_c) eagle3 "$run" 3 "$(trained eagle3_b)" 5 6000 2 "cache=$WORK/features-3" ;;
    draft_a) draft "$run" 1 "$WORK/draft" 120 2e-3 0.3 ;;
    draft_b) draft "$run" 2 "$(trained draft_a)" 600 2e-3 0.4 ;;
    draft_c) draft "$run" 3 "$(trained draft_b)" 800 1e-3 0.4 ;;
    medusa_a) medusa "$run" 1 null 200 student.num_heads=4 student.draft_vocab_size=12288 ;;
    medusa_b) medusa "$run" 2 "$(trained medusa_a)" 450 ;;
    medusa_c) medusa "$run" 3 "$(trained medusa_b)" 600 ;;
    *) echo "$run is not one of the runs" >&2; exit 2 ;;
    esac
done
