#!/usr/bin/env bash
# Transfers 500 MB over three shaped hops of the demo's network: without loss, with 1% loss per link,
# with 20% over the path, and with a cut. Prints the share of the link's rate, losses,
# retransmissions, and the goal. Needs root, jq.
# env: SIZE=500M  RATE=1gbit  REPS=3 (the best result is printed)
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "needs root" >&2; exit 1; }
. bench/need.sh
need tc=iproute2 nft=nftables jq=jq
size=${SIZE:-500M} rate=${RATE:-1gbit} reps=${REPS:-3}
cargo build --release --locked --quiet -p shoal-lab --bin shoal-lab
lab=${CARGO_TARGET_DIR:-target}/release/shoal-lab

row() { # title goal demo-options...
    local title=$1 goal=$2; shift 2
    for _ in $(seq "$reps"); do
        "$lab" demo --size "$size" --rate "$rate" --json "$@" 2>/dev/null
    done | jq -rs --arg title "$title" --arg goal "$goal" 'map(.demo) | max_by(.line_share) |
        "\($title)\t\(.line_share * 1000 | round / 1000) of the rate (goal \($goal)), " +
        "\(.segment_loss * 100000 | round / 1000)% of segments lost, " +
        "\(.retransmitted_bytes / .file_bytes * 100000 | round / 1000)% retransmitted, " +
        (if .lost_bytes > 0 then
            "\(.retransmitted_bytes / .lost_bytes * 1000 | round / 1000) of the bytes that the links lost, "
        else "" end) +
        "longest gap \(.longest_gap_ms | round) ms"'
}
row "no loss      " 0.905 --no-cut
row "1% per link  " 0.875 --no-cut --loss 0.01
row "20% over path" 0.72 --no-cut --loss 0.0717
row "cut half-way " "gap under 1000 ms"
