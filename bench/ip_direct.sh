#!/usr/bin/env bash
# As ip_chain.sh, between two neighbours: h1 - h2, one link. (A link needs a router at one end: h2 is
# one, with an interface of its own.)
set -euo pipefail
cd "$(dirname "$0")/.."
each=${SECONDS_EACH:-5} reps=${REPS:-3}
read -ra rates <<<"${UDP:-0.5 0.7 0.9 1.1 1.3 1.6 2}"
target=${CARGO_TARGET_DIR:-target}
[ "$(id -u)" = 0 ] || { echo "needs root" >&2; exit 1; }
[ -n "${NO_BUILD:-}" ] || cargo build --release --locked --quiet --bin shoal
shoal=$(realpath "$target/release/shoal") wg=${WG:-$HOME/go/bin/wireguard}

prefix=ipd$$ dir=$(mktemp -d) pids=()
. bench/ip_common.sh
clear_names() { ip netns del "$prefix-h1" 2>/dev/null || true; ip netns del "$prefix-h2" 2>/dev/null || true; }
trap 'stop_nodes; clear_names; rm -rf "$dir"' EXIT

wire() {
    clear_names
    ip netns add "$prefix-h1"; ip netns add "$prefix-h2"
    ip link add e netns "$prefix-h1" type veth peer name e netns "$prefix-h2"
    local i=1 name
    for name in h1 h2; do
        inside "$name" sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0
        ip -n "$prefix-$name" link set lo up
        ip -n "$prefix-$name" addr add "10.77.1.$i/24" dev e
        ip -n "$prefix-$name" link set e up
        i=$((i + 1))
    done
}

ours() {
    new_network
    node h1 1.1 h2 10.77.1.2
    node h2 1.0 h1 10.77.1.1
    wire
    run_nodes h1 h2
}

theirs() {
    rm -rf "${dir:?}"/*
    wire
    wg_interfaces h1 h2
    wg_peer h1 h2 10.77.1.2 10.99.0.0/24
    wg_peer h2 h1 10.77.1.1 10.99.0.0/24
    far=10.99.0.2
    inside h1 ping -c 5 -i 0.2 -q "$far" >/dev/null
}

ours
measure shoal
echo "shoal: most resident memory: $(memory)"
stop_nodes
if peer_is_there; then
    theirs
    measure wireguard-go
    compare 2.2
fi
