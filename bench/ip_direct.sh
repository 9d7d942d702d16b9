#!/usr/bin/env bash
# Measures a direct link of two hosts as ip_chain.sh measures the chain. Their router is beside the
# link and carries traffic until the link is up. LEVEL=none or authenticate selects less protection.
#
#     r1
#    /  \
#  h1 == h2
set -euo pipefail
cd "$(dirname "$0")/.."
each=${SECONDS_EACH:-5} reps=${REPS:-3}
read -ra rates <<<"${UDP:-0.5 0.7 0.9 1.1 1.3 1.6 2}"
target=${CARGO_TARGET_DIR:-target}
[ "$(id -u)" = 0 ] || { echo "needs root" >&2; exit 1; }
. bench/need.sh
need ip=iproute2 sysctl=procps iperf3=iperf3 ping=iputils-ping jq=jq
[ -n "${NO_BUILD:-}" ] || cargo build --release --locked --quiet -p shoal-cli --bin shoal
shoal=$(realpath "$target/release/shoal") wg=$(find_wireguard)

level=${LEVEL:-encrypt}
prefix=ipd$$ dir=$(mktemp -d) pids=()
. bench/ip_common.sh
clear_names() { local name; for name in h1 h2 r1; do ip netns del "$prefix-$name" 2>/dev/null || true; done; }
trap 'stop_nodes; clear_names; rm -rf "$dir"' EXIT

wire() {
    clear_names
    local name i
    for name in h1 h2 r1; do
        ip netns add "$prefix-$name"
        inside "$name" sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0
        ip -n "$prefix-$name" link set lo up
    done
    ip link add e netns "$prefix-h1" type veth peer name e netns "$prefix-h2"
    for i in 1 2; do
        ip -n "$prefix-h$i" addr add "10.77.1.$i/24" dev e
        ip -n "$prefix-h$i" link set e up
        ip link add r netns "$prefix-h$i" type veth peer name "to_h$i" netns "$prefix-r1"
        ip -n "$prefix-h$i" addr add "10.77.$((i + 1)).1/24" dev r
        ip -n "$prefix-r1" addr add "10.77.$((i + 1)).2/24" dev "to_h$i"
        ip -n "$prefix-h$i" link set r up
        ip -n "$prefix-r1" link set "to_h$i" up
    done
}

direct() { # name endpoint-address
    printf '[direct]\nmode = "proactive"\nendpoint = "%s:7400"\nlevel = "%s"\n' "$2" "$level" \
        >>"$dir/$1/node.toml"
}

in_force() { # protection level of the link with h2, as h1 reports it
    "$shoal" peers --socket "$dir/h1/control.sock" --json |
        jq -r '.peers[] | select(.name == "h2" and .state == "up") | .direct.level'
}

ours() {
    new_network
    node r1 1.0
    printf '[[link]]\npeer = "h1"\n[[link]]\npeer = "h2"\n' >>"$dir/r1/node.toml"
    node h1 1.1 r1 10.77.2.2
    node h2 1.2 r1 10.77.3.2
    direct h1 10.77.1.1
    direct h2 10.77.1.2
    wire
    run_nodes r1 h1 h2
    for _ in $(seq 100); do
        [ "$(in_force)" = "$level" ] && return
        sleep 0.1
    done
    echo "h1 has no direct link to h2 at level $level; its peers:" >&2
    "$shoal" peers --socket "$dir/h1/control.sock" >&2
    exit 1
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
echo "shoal: direct link, level $level"
measure shoal
echo "shoal: peak resident memory: $(memory)"
stop_nodes
if peer_is_there; then
    theirs
    measure wireguard-go
    compare 2.2
fi
