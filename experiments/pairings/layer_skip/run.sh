#!/usr/bin/env bash
# Acceptance and predicted speed at every depth of two targets, measured speed at some of them, the
# table and the pictures. TARGET_FOLDER is that of Gemma 3 270M. Further arguments are added to every
# run, e.g. num_prompts=8 or, after an interruption, resume=true.
set -euo pipefail
cd "$(dirname "$0")/../../.."
out=${OUT:-outputs/layer_skip}
tiny=(target=tiny)
gemma=(target=gemma3_270m "target.model=${TARGET_FOLDER:-google/gemma-3-270m}" target.dtype=bfloat16)
prompts=(dataset=sharegpt dataset.source=sample dataset.max_turns=1)

measure() { # name of the target, settings of both sides, then what is skipped
    python -m specresearch.run -m +proposer=layer_skip "${prompts[@]}" proposer.tree=chain \
        proposer.num_draft_tokens=1 verify_greedy=true "hydra.sweep.dir=$out/$1/$2" "${@:3}"
}

skipped() { # table, way, number of sublayers: the settings that skip them
    python experiments/pairings/layer_skip/pictures.py "$1" --settings "$2" "$3"
}

calibrate() { # name of the target, then settings
    [ -f "$out/$1/layers.json" ] || python -m specresearch.layers "${prompts[@]}" \
        max_new_tokens=32 "output=$out/$1/layers.json" "${@:2}"
}

calibrate tiny "${tiny[@]}" dataset.max_prompt_tokens=256 num_prompts=4
for depth in "exit 14" "exit 8" "exit 2" "skip 1" "skip 4" "skip 8"; do
    measure tiny "${depth/ /-}" "${tiny[@]}" num_prompts=6 sampling.max_new_tokens=48 \
        $(skipped "$out/tiny/layers.json" $depth) "$@"
done
calibrate gemma "${gemma[@]}" dataset.max_prompt_tokens=64 num_prompts=2 max_share=0.17
for depth in "exit 2" "skip 1"; do
    measure gemma "${depth/ /-}" "${gemma[@]}" dataset.max_prompt_tokens=64 num_prompts=3 warmup=1 \
        sampling.max_new_tokens=24 $(skipped "$out/gemma/layers.json" $depth) "$@"
done
python experiments/pairings/layer_skip/pictures.py "$out"
