#!/usr/bin/env bash
# Measures what README and docs show, all from one revision: bash docs/results/measure.sh FOLDER [LANE...]
# A lane is a list of runs on one GPU, in about 9 minutes: loop, quantised, decoders, others. Without a name all four run
# at the same time, on GPUs 0 to 3 of one host, each on its own share of the cores. `search`, `packages`, `wan`, `training`
# and `tables` are named. docs/results/thin.py reduces a run to what is committed. Needs the packages of requirements.lock,
# `quantised` also torchao, `others` diffusers and transformers. EXTRA="scale=tiny device=cpu" tries the commands.
set -uo pipefail
cd "$(dirname "$0")/../.."
[ $# -ge 1 ] || { sed -n '2,6p' "$0" | cut -c3-; exit 2; }
out=$(mkdir -p "$1" && cd "$1" && pwd); shift
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
python=${PYTHON:-python3} EXTRA=${EXTRA:-}

run() { # NAME TARGET ARGUMENT...: a run in $out/NAME, with what it prints in $out/NAME.log
  local name=$1 target=$2; shift 2
  "$python" -m "profiling.$target" "$@" hydra.run.dir="$out/$name" $EXTRA >"$out/$name.log" 2>&1
  echo "$name: exit code $? at $SECONDS s; $(tail -n 1 "$out/$name.log")"
}
forward() { run "$1" generic_forward "component=[$2]" "variant=[$3]" "${@:4}"; } # NAME COMPONENT VARIANTS ARGUMENT...

loop() { # the main job, and the loop of the same networks
  run main generic_forward
  run realtime realtime
}
quantised() { # the world model and its cached step in 8 bits, an encoder with fewer launches
  local eight=skinny_int8+%,fp8_per_tensor+%,int8_dynamic+%,fp8_weights+%
  forward quantised_world_model world_model \
    "baseline,compile+cuda_graph,regional+cuda_graph,${eight//%/regional+cuda_graph}" seconds=30
  forward quantised_step world_model_step "baseline,cuda_graph,compile+cuda_graph,skinny_int8+compile+cuda_graph" seconds=20
  forward merged_linear world_model,llama_1b_step baseline,compile+cuda_graph,merged_linear+compile+cuda_graph seconds=15
  forward clip_text clip_text baseline,cuda_graph,fx_passes+cuda_graph,compile+cuda_graph seconds=20
}
decoders() { # with the steps that replace kernels; the loop at its frame rate
  local best=compile+cuda_graph last=channels_last steps=fused_norm+grouped_conv+pointwise_conv
  local all=baseline,$best,$last+$best,$last+fold_upsampling+fused_norm+pointwise_conv+$best
  forward decoder_steps image_decoder,audio_decoder,sd_vae_decoder \
    "$all,$last+fold_upsampling+fused_norm+$best,$last+$steps+interpolation+$best,fold_upsampling+$steps+$best"
  forward drawn_decoders emu3_decoder,hunyuan_refiner_decoder,speecht5_vocoder \
    "$all,$last+fold_upsampling+fused_norm+pointwise_conv+$best" seconds=8 --config-dir=benchmarks/drawn_decoders
  run paced realtime 'variant=[compile+cuda_graph]' loop.pace=realtime
  run realtime_steps realtime "mix={world:$best,picture:$last+$steps+interpolation+$best,sound:fold_upsampling+$steps+$best}"
}
others() { # networks of diffusers and transformers
  forward sd_turbo_unet sd_turbo_unet baseline,cuda_graph,compile+cuda_graph seconds=10
  forward llama_1b_step llama_1b_step baseline,cuda_graph,compile+cuda_graph seconds=10
}
wan() {
  local best=compile+cuda_graph steps=fold_upsampling+fused_norm+pointwise_conv
  forward wan_vae_decoder wan_vae_decoder \
    "baseline,$best,channels_last+$best,$steps+$best,channels_last+$steps+$best" seconds=12
}
training() { run training training_step; }
search() { run tune_image_decoder tune 'component=[image_decoder]' seconds=600 prepare_timeout=300 max_rel_l2=0.03; }
packages() { # compiled ahead of time, beside torch.compile
  forward packages world_model,audio_decoder,image_decoder baseline,compile,aot_inductor,compile+cuda_graph,aot_inductor+cuda_graph \
    'metric=[parity,latency,memory]' seconds=20
}

table() { # NAME BENCHMARK ARGUMENT...: the table that a benchmark prints, below its command, revision and date
  local file=$out/$1.txt; shift
  echo "python benchmarks/$* · git $(git rev-parse --short=12 HEAD) · $(date -u '+%F %H:%M')" >"$file"
  echo >>"$file"
  "$python" benchmarks/"$1" "${@:2}" >>"$file" 2>"$file.log"
  echo "$(basename "$file"): exit code $? at $SECONDS s"
}
tables() {
  table skinny_linear skinny_linear.py
  table frame_recorder frame_recorder.py --device cuda
}

lanes=(loop quantised decoders others) known=" ${lanes[*]} search packages wan training tables "
for name; do [[ $known == *" $name "* ]] || { echo "error: $name is none of:$known" >&2; exit 2; }; done
if [ $# -gt 0 ]; then
  for name; do "$name"; done
else
  share=$(($(nproc) / ${#lanes[@]}))
  for gpu in "${!lanes[@]}"; do
    (taskset -cp "$((gpu * share))-$((gpu * share + share - 1))" "$BASHPID" >/dev/null && CUDA_VISIBLE_DEVICES=$gpu "${lanes[gpu]}") &
  done
  wait
fi
