set -u
t() { echo "== $1 $(date +%T)"; }
t engine; timeout 100 python3 -m pytest -m gpu tests/profiling/core/graphs -p no:cacheprovider -W ignore --tb=short --timeout 120 > $OUT/engine.txt 2>&1; tail -8 $OUT/engine.txt
t gpu; timeout 200 python3 -m pytest -m gpu -n 6 -p no:cacheprovider -W ignore --show-capture=no --tb=short --ignore tests/profiling/core/graphs --ignore tests/profiling/calibration --timeout 200 > $OUT/gpu.txt 2>&1; tail -12 $OUT/gpu.txt
t calib; timeout 100 python3 -m pytest -m gpu tests/profiling/calibration -p no:cacheprovider -W ignore --tb=short --timeout 120 > $OUT/calib.txt 2>&1; tail -12 $OUT/calib.txt
t cost; timeout 120 python3 benchmarks/graph_cost.py > $OUT/graph_cost.txt 2>&1; cat $OUT/graph_cost.txt
Q="metric.latency.max_seconds=3"
t clip16; timeout 150 python3 -m profiling.generic_forward component=[clip_text] variant=[baseline,cuda_graph,fx_cuda_graph,compile_max_autotune] dtype=float16 $Q hydra.run.dir=$OUT/clip16 > $OUT/clip16.txt 2>&1; sed -n '/^component/,/^Times/p;/graphs captured/,/^run/p' $OUT/clip16.txt | cut -c1-190 | head -50
t clipbf; timeout 100 python3 -m profiling.generic_forward component=[clip_text,clip_vision] variant=[baseline,cuda_graph,fx_cuda_graph] $Q hydra.run.dir=$OUT/clipbf > $OUT/clipbf.txt 2>&1; sed -n '/Graph passes/,/^run/p' $OUT/clipbf.txt | cut -c1-190 | head -40
t train; timeout 200 python3 -m profiling.training_step training.steps=20 training.lr_changes=[[10,0.1]] $Q hydra.run.dir=$OUT/train > $OUT/train.txt 2>&1; sed -n '/^component/,/^Times/p;/Memory by/,/Steps/p;/failed/p' $OUT/train.txt | cut -c1-260 | head -60
t launch; timeout 100 python3 -m profiling.launch_overhead hydra.run.dir=$OUT/launch > $OUT/launch.txt 2>&1; sed -n '/What a/,/^run/p' $OUT/launch.txt | head -30
t end
