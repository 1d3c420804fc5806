#!/usr/bin/env bash
# Measures a drafter that train.sh has made, on chats and articles that no training saw: acceptance and speed at its default and of chains,
# the export, a certificate, a load test and the report. SHAREGPT and CNNDM name published files; DRAFTS lists lengths of chains, or
# auto for the default. The argument names a run of train.sh; further ones are added to every measurement, e.g. resume=true after an
# interruption.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${TARGET:-google/gemma-3-270m}
run=$1
out=${OUT:-outputs/gemma3_270m_trained}/$run
student=$WORK/runs/$run/student
common=(target=local "target.model=$target" target.max_len=1024 target.dtype=bfloat16)
case $run in
eagle3*) drafter=(+proposer=eagle3 "proposer.head=$student") ;;
medusa*) drafter=(+proposer=medusa "proposer.head=$student") ;;
draft*) drafter=(+proposer=draft_model "draft=$student") ;;
esac

shape() { # the drafts of a chain, or auto: the settings for it
    if [ "$1" = auto ]; then
        return
    elif [[ $run == medusa* ]]; then
        python -c "print('proposer.paths=' + str([[0] * n for n in range(1, $1 + 1)]).replace(' ', ''))"
    else
        echo "proposer.tree=chain proposer.num_draft_tokens=$1"
    fi
}

for data in "sharegpt $SHAREGPT" "cnndm $CNNDM"; do
    read -r dataset path <<< "$data"
    for drafts in ${DRAFTS:-auto 1 2 3 4 5}; do
        for temperature in 0 1; do
            read -r -a settings <<< "$(shape "$drafts")"
            python -m specresearch.run "${common[@]}" "${drafter[@]}" "${settings[@]}" "dataset=$dataset" "dataset.path=$path" \
                dataset.max_turns=1 dataset.max_prompt_tokens=512 "sampling.temperature=$temperature" \
                "sampling.max_new_tokens=${TOKENS:-64}" "num_prompts=${PROMPTS:-24}" warmup=1 \
                "hydra.run.dir=$out/run/$dataset-t$temperature-$drafts" "${@:2}"
        done
    done
done
[[ $run == draft* ]] || python -m specresearch.export "head=$student" "output=$out/exported" "base_model=$target" \
    "format=$([[ $run == medusa* ]] && echo medusa || echo eagle3)"
python -m specresearch.certify "${drafter[@]:0:1}" strength=quick "hydra.run.dir=$out/certificate"
python -m specresearch.load "${common[@]}" "${drafter[@]}" dataset=sharegpt "dataset.path=$SHAREGPT" \
    dataset.max_turns=1 dataset.max_prompt_tokens=512 sampling.temperature=1 "sampling.max_new_tokens=${TOKENS:-64}" \
    arrivals=closed_loop arrivals.concurrency=4 num_requests=32 max_running=4 controller=goodput "hydra.run.dir=$out/load" "${@:2}"
python -m specresearch.table "$out/run" --format csv --output "$out/results.csv"
python -m specresearch.report "$out/run" "$out/load" --output "$out/report"
