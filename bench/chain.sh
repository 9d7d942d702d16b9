#!/usr/bin/env bash
# The unshaped chain h1 - r1 - r2 - h2, all in one run on this machine:
#   udp_limit e   bare UDP chain with AES-256-GCM per hop and end to end, at several rates. Shoal seals
#                 with AEGIS-256X4 on processors with AES instructions (docs/design/decisions/0005-suites.md)
#   wireguard-go  from hop to hop, TCP through three tunnels (if installed)
#   shoal         a file from memory to memory
# Prints Shoal's rate relative to both. Needs root, iproute2, nftables, jq. The comparison needs
# iperf3, ping and wireguard-tools.
# env: SECONDS_EACH=3  WARM=2G (memory touched before each run)  PACES="4 5 6 7 8 100" (Gbit/s)  SIZE=2G  REPS=3  WG=path of wireguard-go
set -euo pipefail
cd "$(dirname "$0")/.."
each=${SECONDS_EACH:-3} paces=${PACES:-4 5 6 7 8 100} size=${SIZE:-2G} reps=${REPS:-3}
target=${CARGO_TARGET_DIR:-target}
[ "$(id -u)" = 0 ] || { echo "needs root" >&2; exit 1; }
. bench/need.sh
need ip=iproute2 tc=iproute2 nft=nftables jq=jq sysctl=procps

[ -n "${NO_BUILD:-}" ] || cargo build --release --locked --quiet -p shoal-lab --bin shoal-lab
CARGO_TARGET_DIR=$target/peers cargo build --release --quiet --manifest-path bench/peers/udp_limit/Cargo.toml
limit=$(realpath "$target/peers/release/udp_limit") lab=$(realpath "$target/release/shoal-lab")

export CHAIN_PREFIX=bench$$
pids=()
down() { kill "${pids[@]}" 2>/dev/null || true; pids=(); bench/peers/chain.sh down; }
trap down EXIT
inside() { ip netns exec "$CHAIN_PREFIX-$1" "${@:2}"; }

udp_limit() { # rate -> received Gbit/s
    bench/peers/chain.sh up
    local out; out=$(mktemp)
    inside h2 "$limit" recv 10.77.3.2:7000 e >"$out" & local receiver=$!
    pids+=("$receiver")
    inside r2 "$limit" relay 10.77.2.2:7000 10.77.3.2:7000 e & pids+=($!)
    inside r1 "$limit" relay 10.77.1.2:7000 10.77.2.2:7000 e & pids+=($!)
    sleep 0.3
    GBPS=$1 inside h1 "$limit" send 10.77.1.2:7000 "$each" e >/dev/null
    wait "$receiver" || true
    awk '/^recv/{print $2}' "$out"
    rm -f "$out"
    down >&2
}

wireguard() { # -> Gbit/s; no output if a tool is missing
    local wg; wg=$(find_wireguard)
    has_wireguard "$wg" || return 0
    (need iperf3=iperf3 ping=iputils-ping) || return 0
    WG=$wg T=$each IPERF_ARGS="-C cubic -f m" CHAIN_PREFIX=${CHAIN_PREFIX}w bench/peers/wg_chain.sh |
        awk '/receiver/{for(i=1;i<NF;i++)if($(i+1)=="Mbits/sec")print $i/1000}'
}

# Touches memory before each run. A virtual machine may have to ask its host for each page that it
# uses for the first time, or again after a while. That costs more than the copy into the page.
warm() {
    local dir; dir=$(mktemp -d /dev/shm/warm.XXXXXX)
    head -c "${WARM:-2G}" /dev/zero >"$dir/pages"
    rm -r "$dir"
}

shoal() { # -> Gbit/s of file bytes
    warm
    "$lab" demo --topology chain --rate none --no-cut --size "$size" --json 2>/dev/null |
        jq -r '.demo.bytes_per_s * 8 / 1e9'
}

best() { sort -g | tail -1; }
ceiling=$(for pace in $paces; do udp_limit "$pace"; done | tee >(cat >&2) | best)
peer=$(for _ in $(seq "$reps"); do wireguard; done | best)
ours=$(for _ in $(seq "$reps"); do shoal; done | tee >(cat >&2) | best)
awk -v c="$ceiling" -v p="${peer:-0}" -v o="$ours" 'BEGIN {
    printf "udp_limit e     %.2f Gbit/s at its best rate\n", c
    if (p > 0) printf "wireguard-go    %.2f Gbit/s\n", p
    printf "shoal           %.2f Gbit/s of file bytes\n", o
    printf "shoal / udp_limit e   %.2f (goal 0.50)\n", o / c
    if (p > 0) printf "shoal / wireguard-go  %.2f (goal 4)\n", o / p
}'
