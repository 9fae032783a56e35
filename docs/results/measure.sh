#!/usr/bin/env bash
# Measures what README and docs show, all from one revision: bash docs/results/measure.sh FOLDER [LANE...]
# A lane is a list of runs on one GPU, in at most 10 minutes: loop, decoders, quantised, wan, others. Without a name all run, on as
# many GPUs of the host as there are, each with its own share of the cores. `tried`, `search`, `packages` and `tables` are named.
# docs/results/thin.py reduces a run to what is committed. Needs the packages of requirements.lock, `quantised` also torchao,
# `wan` and `others` diffusers and transformers. ONLY="main paced" leaves out all other runs of the lanes;
# EXTRA="scale=tiny device=cpu" tries the commands.
set -uo pipefail
cd "$(dirname "$0")/../.."
[ $# -ge 1 ] || { sed -n '2,7p' "$0" | cut -c3-; exit 2; }
out=$(mkdir -p "$1" && cd "$1" && pwd); shift
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
python=${PYTHON:-python3} EXTRA=${EXTRA:-}

run() { # NAME TARGET ARGUMENT...: a run in $out/NAME, with what it prints in $out/NAME.log
  local name=$1 target=$2; shift 2
  [[ -z ${ONLY:-} || " $ONLY " == *" $name "* ]] || return 0
  "$python" -m "profiling.$target" "$@" hydra.run.dir="$out/$name" $EXTRA >"$out/$name.log" 2>&1
  echo "$name: exit code $? at $SECONDS s; $(tail -n 1 "$out/$name.log")"
}
forward() { run "$1" generic_forward "${@:4}" "component=[$2]" "variant=[$3]"; } # NAME COMPONENT VARIANTS [--OPTION...] KEY...

best=compile+cuda_graph last=channels_last+ steps=fused_norm+grouped_conv+pointwise_conv+
image=${last}${steps}interpolation+$best sound=fold_upsampling+$steps$best # the fastest recipes of the decoders
loop() { # the main job, and the loop of the same networks, from empty caches
  run main generic_forward
  run realtime realtime
}
decoders() { # with the steps that replace kernels
  forward decoder_steps image_decoder,audio_decoder "baseline,$best,$last$best,$image,$sound" compile_cache=shared
}
overlap() { # the loop, and with these steps each stage on a stream of its own; the decoders compiled by `decoders`
  local shared="loop.schedule=overlap compile_cache=shared" decoded=picture:$image,sound:$sound
  run overlap_mix realtime "mix={world:$best,$decoded}" $shared
  run overlap_merged realtime "mix={world:merged_linear+$best,$decoded}" $shared
  run realtime_warm realtime compile_cache=shared
}
quantised() { # the world model and its cached step in 8 bits, an encoder with fewer launches
  local eight=skinny_int8+%,fp8_per_tensor+%,int8_dynamic+%,fp8_weights+%
  forward quantised_world_model world_model \
    "baseline,$best,regional+cuda_graph,${eight//%/regional+cuda_graph}" seconds=30
  forward quantised_step world_model_step "baseline,cuda_graph,$best,merged_linear+$best,skinny_int8+$best" seconds=20
  forward merged_linear world_model,llama_1b_step "baseline,$best,merged_linear+$best" seconds=15
  forward clip_text clip_text "baseline,cuda_graph,fx_passes+cuda_graph,$best" seconds=20
}
tried() { # what the bars that are missed gain and lose by each step, and by other options
  local without cells=
  for without in fold_upsampling fused_norm grouped_conv pointwise_conv; do cells+=,${sound/$without+/}; done
  forward audio_steps audio_decoder "$best,$sound$cells,${sound/compile/compile+pdl}" seconds=25
  forward step_options world_model_step "$best,merged_linear+$best,merged_linear+${best/compile/compile+pdl}" seconds=15
  forward step_autotuned world_model_step "$best,${best/compile/compile+max_autotune}" seconds=10
}
wan() {
  local upsampled=fold_upsampling+fused_norm+pointwise_conv+
  forward wan_vae_decoder wan_vae_decoder "baseline,$best,$last$best,$last$upsampled$best" seconds=8
}
others() { # networks of diffusers and transformers, a training step, the loop at its frame rate
  local all=baseline,$best,$last$best folded=${last}fold_upsampling+fused_norm+
  forward sd_vae_decoder sd_vae_decoder "$all,$folded$best,${folded}pointwise_conv+$best" seconds=10
  forward drawn_decoders emu3_decoder,hunyuan_refiner_decoder,speecht5_vocoder \
    "$all,${last}fused_norm+$best,${folded}pointwise_conv+$best,fold_upsampling+grouped_conv+$best" --config-dir=benchmarks/drawn_decoders seconds=8
  forward sd_turbo_unet sd_turbo_unet "baseline,cuda_graph,$best" seconds=10
  run training training_step
  run paced realtime "variant=[$best]" loop.pace=realtime
}
search() { run tune_image_decoder tune 'component=[image_decoder]' seconds=600 prepare_timeout=300 max_rel_l2=0.03; }
packages() { # compiled ahead of time, beside torch.compile
  forward packages world_model,audio_decoder,image_decoder "baseline,compile,aot_inductor,$best,aot_inductor+cuda_graph" \
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

lanes=(loop decoders quantised wan others) known=" ${lanes[*]} overlap tried search packages tables "
for name; do [[ $known == *" $name "* ]] || { echo "error: $name is none of:$known" >&2; exit 2; }; done
if [ $# -gt 0 ]; then
  for name; do "$name"; done
else
  gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l) && [ "$gpus" -gt 0 ] || gpus=1
  share=$(($(nproc) / gpus))
  for ((gpu = 0; gpu < gpus; gpu++)); do
    (
      taskset -cp "$((gpu * share))-$((gpu * share + share - 1))" "$BASHPID" >/dev/null
      for ((lane = gpu; lane < ${#lanes[@]}; lane += gpus)); do CUDA_VISIBLE_DEVICES=$gpu "${lanes[lane]}"; done
    ) &
  done
  wait
fi
