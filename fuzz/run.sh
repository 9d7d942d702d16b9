#!/bin/sh
# Runs one fuzz target without cargo-fuzz. Needs nightly Rust and a C++ compiler. The build flags are
# those of cargo-fuzz for libFuzzer, without a sanitizer.
#
#   fuzz/run.sh wire_leg -runs=100000000    searches; options of libFuzzer follow the target
#   fuzz/run.sh wire_leg -merge             adds found inputs with new coverage to the corpus
#
# Inputs with new coverage are stored in fuzz/target/found, failing inputs in fuzz/artifacts.
set -eu
cd "$(dirname "$0")"
target=$1
shift
triple=$(rustc +nightly -vV | sed -n 's/^host: //p')
sanitizer="-Cllvm-args=-sanitizer-coverage"
RUSTFLAGS="-Cpasses=sancov-module $sanitizer-level=4 $sanitizer-inline-8bit-counters \
    $sanitizer-pc-table $sanitizer-trace-compares \
    --cfg fuzzing -Cdebug-assertions -Ccodegen-units=1" \
    cargo +nightly build --release --target "$triple" --bin "$target"
program="${CARGO_TARGET_DIR:-target}/$triple/release/$target"
found="target/found/$target"
mkdir -p "$found" "artifacts/$target"
if [ "${1:-}" = -merge ]; then
    exec "$program" -merge=1 "corpus/$target" "$found"
fi
exec "$program" -artifact_prefix="artifacts/$target/" -print_final_stats=1 "$@" \
    "$found" "corpus/$target"
