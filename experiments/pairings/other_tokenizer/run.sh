#!/usr/bin/env bash
# Measures a draft with another tokenizer in all modes, on chats and articles. SHAREGPT and CNNDM name published files; TARGET and OUT are
# a model and a folder. Arguments are added to every measurement, e.g. resume=true after an interruption.
set -euo pipefail
cd "$(dirname "$0")/../../.."
target=${TARGET:-google/gemma-3-270m}
out=${OUT:-outputs/other_tokenizer}
for temperature in 0 1; do
    for data in "sharegpt $SHAREGPT" "cnndm $CNNDM"; do
        read -r dataset path <<< "$data"
        for mode in tli hybrid slem; do
            python -m specresearch.run +proposer=draft_model_other_tokenizer "proposer.mode=$mode" proposer.tree=chain \
                "proposer.num_draft_tokens=${DRAFTS:-3}" draft=zoo:tiny_draft target=local "target.model=$target" target.max_len=1024 \
                target.dtype=bfloat16 "dataset=$dataset" "dataset.path=$path" dataset.max_turns=1 dataset.max_prompt_tokens=256 \
                "sampling.temperature=$temperature" "sampling.max_new_tokens=${TOKENS:-48}" "num_prompts=${PROMPTS:-8}" warmup=1 \
                "hydra.run.dir=$out/$dataset-t$temperature-$mode" "$@"
        done
    done
done
python -m specresearch.table "$out" --format csv --output "$out/results.csv"
