#!/usr/bin/env bash
# Four procedures by which people judge speculation before it goes into production; each ends in a report.
#   run.sh concurrency|temperature|rate|mixed|served [further settings of every run]
# CNNDM, SHAREGPT and HUMANEVAL name published files; OUT the folder of results. Further settings name your model, such as
# target=local target.model=FOLDER draft=FOLDER, or go on after an interruption: resume=true. `served` is `concurrency` by way of a
# server: of server=URL, or of two with server=URL baseline_server=URL.
set -euo pipefail
cd "$(dirname "$0")/../.."
recipe=${1:?concurrency, temperature, rate, mixed or served}
shift
out=${OUT:-outputs/production}/$recipe
chats=(dataset=sharegpt "dataset.path=${SHAREGPT:?names a file}" dataset.max_prompt_tokens=256)
short=(sampling.max_new_tokens=64)

case $recipe in
concurrency) # 200 prompts, with and without speculation
    python -m specresearch.load +experiment=concurrency "${chats[@]}" "${short[@]}" arrivals.concurrency=1,4,8,16 num_requests=200 \
        "compare=[]" repeats=1 "hydra.sweep.dir=$out" "$@"
    ;;
served)
    python -m specresearch.load -m "${chats[@]}" "${short[@]}" arrivals=closed_loop arrivals.concurrency=1,4,8,16 num_requests=200 \
        repeats=2 "hydra.sweep.dir=$out" "$@"
    ;;
temperature) # 0 to 1, with acceptance
    python -m specresearch.run +experiment=temperature "${chats[@]}" "${short[@]}" sampling.temperature=0,0.2,0.4,0.6,0.8,1 \
        num_prompts=24 proposer.num_draft_tokens=5 "hydra.sweep.dir=$out" "$@"
    ;;
rate) # from one query a second to more than can be served; news by lookup, chats by a draft model
    articles=(dataset=cnndm "dataset.path=${CNNDM:?names a file}" dataset.max_prompt_tokens=512)
    python -m specresearch.load +experiment=qps "${articles[@]}" "${short[@]}" arrivals.qps=1,2,4,8 "compare=[]" repeats=1 \
        "hydra.sweep.dir=$out/articles" "$@"
    python -m specresearch.load +experiment=qps proposer=draft_model "${chats[@]}" "${short[@]}" arrivals.qps=1,2,4,8 "compare=[]" \
        repeats=1 "hydra.sweep.dir=$out/chats" "$@"
    ;;
mixed) # 60% structured at temperature 0.2, 40% creative at 1: a healthy mean may hide who pays
    python -m specresearch.load +experiment=mixed "classes.structured.dataset.path=${HUMANEVAL:?names a file}" "classes.creative.dataset.path=$SHAREGPT" \
        classes.creative.dataset.max_prompt_tokens=256 "${short[@]}" "compare=[]" repeats=1 "hydra.sweep.dir=$out" "$@"
    ;;
*)
    echo "$recipe is none of concurrency, temperature, rate, mixed, served" >&2
    exit 2
    ;;
esac
python -m specresearch.report "$out" --output "$out/report"
