#!/usr/bin/env bash
# Programs on the chain h1 - r1 - r2 - h2: over Shoal's virtual interface, and over wireguard-go from
# hop to hop in the same run. Measures iperf3 TCP with one and ten streams, UDP without loss, and
# ping, idle and under full load. Needs root, iproute2, iperf3, ping, jq, /dev/net/tun. The
# comparison needs wireguard-tools and wireguard-go.
# env: SECONDS_EACH=5  REPS=3  UDP="0.2 0.3 0.4 0.5 0.7 0.9 1.1 1.3 1.5"
#      WG=path of wireguard-go ("none": only Shoal)
set -euo pipefail
cd "$(dirname "$0")/.."
each=${SECONDS_EACH:-5} reps=${REPS:-3}
read -ra rates <<<"${UDP:-0.2 0.3 0.4 0.5 0.7 0.9 1.1 1.3 1.5}"
target=${CARGO_TARGET_DIR:-target}
[ "$(id -u)" = 0 ] || { echo "needs root" >&2; exit 1; }
. bench/need.sh
need ip=iproute2 sysctl=procps iperf3=iperf3 ping=iputils-ping jq=jq
[ -n "${NO_BUILD:-}" ] || cargo build --release --locked --quiet -p shoal-cli --bin shoal
shoal=$(realpath "$target/release/shoal") wg=$(find_wireguard)

prefix=ipc$$ dir=$(mktemp -d) pids=()
export CHAIN_PREFIX=$prefix
. bench/ip_common.sh
trap 'stop_nodes; bench/peers/chain.sh down; rm -rf "$dir"' EXIT

ours() {
    new_network
    node h1 1.1 r1 10.77.1.2
    node r1 1.0 h1 10.77.1.1 r2 10.77.2.2
    node r2 2.0 r1 10.77.2.1 h2 10.77.3.2
    node h2 2.1 r2 10.77.3.1
    bench/peers/chain.sh up
    run_nodes h1 r1 r2 h2
}

theirs() {
    rm -rf "${dir:?}"/*
    bench/peers/chain.sh up
    wg_interfaces h1 r1 r2 h2
    wg_peer h1 r1 10.77.1.2 10.99.0.0/24
    wg_peer r1 h1 10.77.1.1 10.99.0.1/32
    wg_peer r1 r2 10.77.2.2 10.99.0.4/32,10.99.0.3/32
    wg_peer r2 r1 10.77.2.1 10.99.0.1/32,10.99.0.2/32
    wg_peer r2 h2 10.77.3.2 10.99.0.4/32
    wg_peer h2 r2 10.77.3.1 10.99.0.0/24
    far=10.99.0.4
    inside h1 ping -c 5 -i 0.2 -q "$far" >/dev/null
}

ours
measure shoal
echo "shoal: peak resident memory: $(memory)"
stop_nodes
if peer_is_there; then
    theirs
    measure wireguard-go
    compare 3.5
fi
