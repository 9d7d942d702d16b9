#!/bin/sh
# Searches with one fuzz target where cargo-fuzz is not installed. Needs nightly Rust and a C++
# compiler. The flags are those with which cargo-fuzz builds for libFuzzer, without a sanitizer.
#
#   fuzz/run.sh wire_leg -runs=100000000    libFuzzer's options follow the target
#   fuzz/run.sh wire_leg -merge             adds to the corpus what reached new code since
#
# What reaches new code is kept in fuzz/target/found, what fails in fuzz/artifacts.
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
