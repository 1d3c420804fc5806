#!/usr/bin/env bash
# Every run of the study, and its table. CNNDM and SHAREGPT name published files (without them: the shipped prompts). Arguments are
# added to every run, e.g. num_prompts=4 or, after an interruption, resume=true.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${OUT:-outputs/trees}
setting='${dataset.name}-batch${batch_size}-temperature${sampling.temperature}'

measure_on() { # dataset, where its prompts are, name of the shape, then what makes it
    python -m specresearch.run -m +proposer=draft_model dataset="$1" "dataset.${2:-source=sample}" num_prompts=12 \
        batch_size=1,8 sampling.temperature=0,1 "hydra.sweep.dir=$out/$3" "hydra.sweep.subdir=$setting" "${@:4}"
}

measure() { # name of the shape, then what makes it
    measure_on cnndm "${CNNDM:+path=$CNNDM}" "$@"
    measure_on sharegpt "${SHAREGPT:+path=$SHAREGPT}" "$@"
}

measure chain_5 proposer.num_draft_tokens=5 "$@"
measure chain_10 proposer.num_draft_tokens=10 "$@"
measure static_typical proposer.tree=static proposer.num_draft_tokens=24 "$@"
for run in "$out"/static_typical/*/; do
    name=$(basename "$run")
    python -m specresearch.tree "run=[$run,$out/chain_5/$name]" "output=$out/chosen/$name.json"
done
measure static_chosen proposer.tree=static "proposer.paths=$out/chosen/$setting.json" "$@"
measure dynamic proposer.tree=dynamic proposer.num_draft_tokens=24 "$@"
python experiments/trees/table.py "$out"
