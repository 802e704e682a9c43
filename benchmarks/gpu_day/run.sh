#!/usr/bin/env bash
# One hour's work on a bare machine with a GPU and without a network, in at most LIMIT seconds:
# what is installed, correctness, memory, times of steps and launches, peers, sanitizers.
# Every part runs whatever happened to the others, within its own limit. $OUT/results.tgz has all
# logs, and $OUT/report.json what report.py makes of them. prepare.sh collects what has to be carried here, in $CARRIED.
#
# bash benchmarks/gpu_day/run.sh [--emulated]
# --emulated runs the parts that the CPU can run, on an emulated GPU and small networks. INJECT is
# then a fault: kernel (wrong results), version (an old cuDNN frontend) or hang (a test that hangs).
# The limits of a GPU do not apply there: a part may take SLOWER times as long.
set -u
cd "$(dirname "$0")/../.."
EMULATED=
if [ "${1:-}" = --emulated ]; then
  EMULATED=1
  : "${WORKERS:=$(nproc)}" "${SLOWER:=4}"
  : "${LIMIT:=$((450 * SLOWER))}"
  [ -x .venv/bin/python ] && : "${PY:=$PWD/.venv/bin/python}"
fi
: "${OUT:=$PWD/build/gpu-day}" "${PY:=python3}" "${LIMIT:=510}" "${INJECT:=}" "${CARRIED:=$PWD/.gpu-day}" "${SLOWER:=1}"
: "${WORKERS:=12}" "${PEERS:=gpt2 gpt2-dropout resnet50}"
: "${PARTS:=facts tests memory selftest steps peers planned compiled fit link sanitizers}"
HERE=$PWD/benchmarks/gpu_day; WORK=$(mktemp -d); began=$SECONDS
RESULTS=$OUT; OUT=$OUT/logs # removed once results.tgz has them
rm -rf "$OUT"; mkdir -p "$OUT" "$WORK/cache"
export OUT EMULATED INJECT WORK PYTHONUNBUFFERED=1 XDG_CACHE_HOME=$WORK/cache
export TORCHINDUCTOR_CACHE_DIR=$WORK/inductor XLA_PYTHON_CLIENT_PREALLOCATE=false
export PYTHONPATH=$WORK/site:$PWD:$PWD/tests:$PWD/benchmarks
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4} OPENBLAS_NUM_THREADS=1

part() { # LINES NAME SECONDS COMMAND...: run within SECONDS and what is left; show the last LINES
  local lines=$1 name=$2 most=$(($3 * SLOWER)) rest=$((LIMIT - SECONDS + began)) at=$SECONDS status; shift 3
  [ "$rest" -lt 8 ] && { echo "== $name: no time left"; echo "$name - 0" >>"$OUT/parts"; return; }
  [ "$most" -gt "$rest" ] && most=$rest
  timeout -s INT -k 5 "$most" "$@" >"$OUT/$name.log" 2>&1; status=$?
  echo "$name $status $((SECONDS - at))" >>"$OUT/parts"
  echo "== $name: status $status, $((SECONDS - at)) s of $most, $((LIMIT - SECONDS + began)) s left"
  tail -n "$lines" "$OUT/$name.log"
}
has() { case " $PARTS " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }
pack() {
  (cd "$OUT" && tar czf "$RESULTS/results.tgz" -- *) && rm -rf "$OUT"
  $PY "$HERE/report.py" "$RESULTS/results.tgz" --output "$RESULTS/report.json"
  rm -rf "$WORK"
  exit 0 # what failed is in the report
}
trap pack EXIT

tar xzf "$CARRIED/cache.tgz" -C "$WORK/cache" 2>/dev/null
cp "$CARRIED/commit" "$OUT/commit" 2>/dev/null || git rev-parse --short HEAD >"$OUT/commit" 2>/dev/null
wheel() { $PY -m pip install -q --no-index --no-deps --no-compile --target "$WORK/site" "$CARRIED"/wheels/"$1"*.whl; }
if [ -z "$EMULATED" ]; then
  wheel nvidia_cudnn_frontend
  $PY -W ignore -c 'import numba' 2>/dev/null || wheel numpy-  # a numba that refuses the machine's NumPy
fi

has facts && part 30 facts 40 $PY "$HERE/day.py" facts
# Peaks of torch's steps, each process with every fifth case, and what torch.compile keeps for the
# timed steps, beside the tests.
workers() { for n in 0 1 2 3 4; do $PY "$HERE/torch_parts.py" fit $n 5 & done; wait; }
compiled() { OUT=$WORK; for net in $PEERS; do $PY "$HERE/day.py" peer $net compile & done; wait; }
export -f workers compiled; export PY HERE PEERS
[ -z "$EMULATED" ] && has fit && part 40 fit "${FIT:-150}" bash -c workers &
[ -z "$EMULATED" ] && has peers && part 5 compile 120 bash -c compiled &

# No -x, and warnings are no errors: one failure hides no other.
CHECKS="-q -p no:cacheprovider -W default"
$PY -c 'import pytest_timeout' 2>/dev/null && CHECKS="$CHECKS --timeout=$((${TEST_SECONDS:-100} * SLOWER))"
[ -n "$EMULATED" ] && CHECKS="$CHECKS --emulated-gpu" && : "${K:=test_op_equals or mlp or gpt2}"
hanging=; [ "$INJECT" = hang ] && hanging=$HERE/hanging.py
torch=; [ -z "$EMULATED" ] && torch=tests/pytorch/test_gpu.py
has tests && part 25 tests "${TESTS:-130}" $PY -m pytest tests/on_gpu $torch $hanging $CHECKS -n "$WORKERS" \
  --dist worksteal --deselect tests/on_gpu/test_memory.py --junitxml "$OUT/tests.xml" ${K:+-k "$K or hangs"}
wait
# The driver's bytes are of the whole GPU, so these checks run alone.
has memory && part 8 memory 45 $PY -m pytest tests/on_gpu/test_memory.py $CHECKS --junitxml "$OUT/memory.xml"
has selftest && part 12 selftest 75 $PY "$HERE/day.py" selftest

has steps && for net in ${NETWORKS:-gpt2 gpt2-dropout resnet50}; do
  part 8 "steps-$net" 100 $PY "$HERE/day.py" steps $net
done
[ -n "$EMULATED" ] && exit 0
has peers && for how in eager compile; do for net in $PEERS; do
  part 1 "peer-$net-$how" 70 $PY "$HERE/day.py" peer $net $how
done; done
has link && part 20 link 30 $PY "$HERE/torch_parts.py" link
has planned && for net in ${PLANNED:-gpt2 llama resnet50}; do
  part 12 "planned-$net" 100 $PY "$HERE/torch_parts.py" planned "$net autocast"
done
has compiled && for net in ${PLANNED:-gpt2 llama}; do
  part 12 "compiled-$net" 240 $PY "$HERE/torch_parts.py" compiled "$net autocast"
done
# Errors of CUDA calls are not reported: libraries probe for functions that a driver may lack.
SANITIZE="--report-api-errors no --target-processes all --error-exitcode 9"
has sanitizers && part 5 racecheck 40 compute-sanitizer --tool racecheck $SANITIZE \
  $PY -m pytest $CHECKS tests/on_gpu/test_models.py -k "narrow and bf16"
has sanitizers && part 5 memcheck 170 compute-sanitizer --tool memcheck $SANITIZE \
  $PY -m pytest $CHECKS tests/on_gpu/test_ops.py -n "$WORKERS"
exit 0
