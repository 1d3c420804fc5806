#!/usr/bin/env bash
# Speed of the drafters that `study.py drafters` trained from seed 0, at batch sizes 1 and 8, greedy. WORK is the study's folder, SHAREGPT
# and CNNDM name published files. 64 prompts at batch size 8, since fewer than eight groups have no interval. Arguments are added to
# every run.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${OUT:-outputs/training_speed}
more=("$@")
sizes=("1 12 128" "8 64 64") # batch, prompts, new tokens

measure() { # name, then what drafts
    for data in "sharegpt $SHAREGPT" "cnndm $CNNDM"; do
        read -r dataset path <<< "$data"
        for size in "${sizes[@]}"; do
            read -r batch prompts tokens <<< "$size"
            python -m specresearch.run dataset="$dataset" dataset.path="$path" batch_size="$batch" num_prompts="$prompts" \
                sampling.max_new_tokens="$tokens" "hydra.run.dir=$out/$1/$dataset-batch$batch" "${@:2}" "${more[@]}"
        done
    done
}

trained() { echo "$WORK/runs/$1/seed0/student"; }

measure ngram +proposer=ngram
measure untrained +proposer=draft_model proposer.num_draft_tokens=3
measure draft_model +proposer=draft_model "draft=$(trained forward_kl)" proposer.num_draft_tokens=3
measure medusa +proposer=medusa "proposer.head=$(trained medusa)" 'proposer.paths=[[0],[0,0],[0,0,0]]'
measure eagle +proposer=eagle "proposer.head=$(trained eagle)" proposer.tree=chain proposer.num_draft_tokens=3
measure eagle3 +proposer=eagle3 "proposer.head=$(trained eagle3)" proposer.tree=chain proposer.num_draft_tokens=3
# what is fastest on chats: lookup where it finds something, the zoo's distilled draft elsewhere; beside lookup alone, both compiled,
# which is for small batches
sizes=("1 12 128")
measure ngram_compiled +proposer=ngram target.compile=true
measure cascade_compiled +proposer=cascade draft=zoo:tiny_draft_distilled proposer.proposers.1.num_draft_tokens=4 target.compile=true
