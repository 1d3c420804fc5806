#!/bin/sh
# FOLDER holds Gemma 3 270M in bfloat16, FILE the news articles as JSON lines.
python -m specresearch.penalty target=local target.model="$FOLDER" target.max_len=512 \
    proposer.draft=self 'targets=[bf16,int8,int4]' 'drafts=[bf16,int8,int4]' \
    dataset=cnndm dataset.path="$FILE" dataset.max_prompt_tokens=128 \
    num_prompts=9 num_trials=1 max_new_tokens=24 'lengths=[1,3]' hydra.run.dir=outputs/quantised_self
