#!/usr/bin/env bash
# Measures again what this folder holds: bash docs/results/measure.sh FOLDER FUNCTION...   (of those below)
# Runs and printed tables go to FOLDER; docs/results/thin.py reduces a run to what is committed. Needs a GPU that nothing
# else uses (an H200 for what is committed as h200…), and the packages of requirements.lock; `quantised` and the search
# also torchao.
# TIMED=20: seconds of timing of each component of `quantised`. WARM=1 compiles what `quantised` times before, all recipes at
# once: `prepare` of its cells is then a warm start.
# Two jobs on two GPUs at the same time: start each with its own CUDA_VISIBLE_DEVICES and `taskset` on its own cores.
set -uo pipefail
cd "$(dirname "$0")/../.."
[ $# -ge 2 ] || { sed -n '2,8p' "$0" | cut -c3-; exit 2; }
out=$(mkdir -p "$1" && cd "$1" && pwd); shift
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
python=${PYTHON:-python3} EXTRA=${EXTRA:-} # EXTRA="scale=tiny device=cpu": try the commands of the runs

run() { # NAME TARGET ARGUMENT...: a run in $out/NAME, with what it prints in $out/NAME.log
  local name=$1 target=$2; shift 2
  echo "$name: begins at $SECONDS s"
  "$python" -m "profiling.$target" "$@" hydra.run.dir="$out/$name" $EXTRA >"$out/$name.log" 2>&1
  echo "$name: exit code $? at $SECONDS s; $(tail -n 1 "$out/$name.log")"
}
table() { # NAME SCRIPT ARGUMENT...: what a benchmark prints, in $out/NAME.txt
  local name=$1; shift
  timeout "${LIMIT:-300}" "$python" "$@" >"$out/$name.txt" 2>"$out/$name.log"
  echo "$name: exit code $? at $SECONDS s"; tail -n "${SHOW:-6}" "$out/$name.txt"
}

fill_cache() { # COMPONENT ARGUMENT... -- VARIANT...: compile all variants at the same time, so that a run of all is short
  local component=$1 arguments=() variant; shift
  while [ "$1" != -- ]; do arguments+=("$1"); shift; done; shift
  for variant; do
    [ "$variant" = baseline ] ||
      run "cache_${component}_$variant" generic_forward "${arguments[@]}" "component=[$component]" "variant=[baseline,$variant]" \
        'metric=[parity]' ceilings=off &
  done
  wait
}

# h200/: tables of benchmarks
skinny() { # tiles of linear layers for few rows; then those that are in use
  SHOW=40 table skinny_tiles benchmarks/skinny_tiles.py --rows 17
  table skinny_tiles_adaln benchmarks/skinny_tiles.py --rows 1 2 --layers adaln
  SHOW=30 table skinny_linear benchmarks/skinny_linear.py
}
joules() { table energy benchmarks/energy.py; } # only where nothing else runs on the host
aot_load() { SHOW=80 table aot_load benchmarks/aot_load.py --out "$out/aot_load"; }
gpu_tests() { # one process: tests of energy measure the whole GPU
  LIMIT=${LIMIT:-560} SHOW=30 table gpu_tests -m pytest -m gpu -n 0 -q -rf --timeout 240 ${TESTS:-tests}
}
regional() { # with REST=true the parts between the blocks are compiled, too
  run "regional_${REST:-false}" generic_forward 'component=[world_model]' 'metric=[parity,latency,memory]' ceilings=off \
    'variant=[baseline,regional+cuda_graph,compile+cuda_graph]' compile_cache=cold seconds=12 \
    "step.regional.rest=${REST:-false}"
}
regional_settings() { SHOW=20 table regional benchmarks/regional.py; } # compile seconds and replay time by inductor setting

# folders of their own
packages() { # COMPONENTS="world_model audio_decoder": compiled ahead of time, beside torch.compile
  local components=${COMPONENTS:-world_model audio_decoder image_decoder}
  run packages generic_forward "component=[${components// /,}]" 'metric=[parity,latency,memory]' seconds=20 \
    'variant=[baseline,compile,aot_inductor,compile+cuda_graph,aot_inductor+cuda_graph]'
}
energy_of_the_grid() { run energy_of_the_grid generic_forward 'metric=[parity,latency,memory,energy]'; }
recipes() { echo "$1" | sed "s/[^,]*/${plain:-}&$2/g"; } # each of the names, comma-separated, with the same other steps
quantised() { # COMPONENTS="world_model image_decoder": thin.py merges the runs of all four
  local component common=(--config-dir=benchmarks/quantised prepare_timeout=100 compile_cache=shared "seconds=${TIMED:-35}")
  for component in ${COMPONENTS:-world_model world_model_step image_decoder audio_decoder}; do
    local variants extra=() weights=int8_weights,int4_weights,fp8_weights,fp8_per_tensor,fp8_per_row
    case $component in
      world_model) variants=baseline,regional+cuda_graph,$(recipes "$weights,int8_dynamic,skinny_int8,skinny_fp8,skinny_bf16" +regional+cuda_graph) ;;
      world_model_step)
        extra=(component.world_model_step.module.kernel=sdpa)
        variants=baseline,cuda_graph,compile+cuda_graph,int8_weights+cuda_graph,$(recipes "fp8_per_tensor,skinny_int8,skinny_fp8,fp8_weights,skinny_bf16" +compile+cuda_graph) ;;
      *)
        local name; for name in ${weights//,/ } int8_dynamic; do extra+=("step.$name.conv_1x1=true"); done
        variants=baseline,compile+cuda_graph,channels_last+compile,$(plain=plain_pointwise+ recipes "$weights,int8_dynamic" +compile+cuda_graph) ;;
    esac
    if [ -n "${WARM:-}" ]; then fill_cache "$component" "${common[@]/prepare_timeout=100/prepare_timeout=250}" "${extra[@]}" -- ${variants//,/ }; fi
    run "quantised_$component" generic_forward "${common[@]}" "component=[$component]" "variant=[$variants]" "${extra[@]}"
  done
}
search() { # COMPONENT, with BUDGET seconds
  run "tune_$1" tune "component=[$1]" "seconds=${BUDGET:-600}" compile_cache=shared prepare_timeout=300 max_rel_l2=0.03
}
tune_image_decoder() { search image_decoder; }

for name; do
  declare -F "$name" >/dev/null && [[ ! $name =~ ^(run|table|search|fill_cache|recipes)$ ]] || { echo "error: $name is none of: $(declare -F | cut -d' ' -f3 | grep -vE '^(run|table|search|fill_cache|recipes)$' | tr '\n' ' ')" >&2; exit 2; }
  "$name"
done
