#!/usr/bin/env bash
# Programs on the chain h1 - r1 - r2 - r3 - h2, alternately over three networks: Shoal with plain
# routing, Shoal with a circuit over the three routers, and wireguard-go from hop to hop. Measures
# iperf3 TCP with one stream, UDP, and ping. Needs root, iproute2, iperf3, ping, jq, /dev/net/tun. The
# comparison needs wireguard-tools and wireguard-go.
# env: SECONDS_EACH=5  REPS=5  UDP=0.3 (Gbit/s)  WG=path of wireguard-go ("none": only Shoal)
set -euo pipefail
cd "$(dirname "$0")/.."
each=${SECONDS_EACH:-5} reps=${REPS:-5} offered=${UDP:-0.3}
target=${CARGO_TARGET_DIR:-target}
[ "$(id -u)" = 0 ] || { echo "needs root" >&2; exit 1; }
. bench/need.sh
need ip=iproute2 sysctl=procps iperf3=iperf3 ping=iputils-ping jq=jq
[ -n "${NO_BUILD:-}" ] || cargo build --release --locked --quiet -p shoal-cli --bin shoal
shoal=${SHOAL:-$(realpath "$target/release/shoal")} wg=$(find_wireguard)

root=$(mktemp -d) started=() kinds=(plain circuit)
[ "$wg" != none ] && has_wireguard "$wg" && kinds+=(wireguard-go)
export CHAIN_ROUTERS=3
. bench/ip_common.sh
# All three networks are up at the same time and are measured alternately.
use() { kind=$1 prefix=onc$$${1:0:1} dir=$root/$1; export CHAIN_PREFIX=$prefix; mkdir -p "$dir"; }
finish() {
    pids=("${started[@]}")
    stop_nodes
    for kind in "${kinds[@]}"; do use "$kind"; bench/peers/chain.sh down; done
    rm -rf "$root"
}
trap finish EXIT

ours() {
    new_network
    node h1 1.1 r1 10.77.1.2
    node r1 1.0 h1 10.77.1.1 r2 10.77.2.2
    node r2 2.0 r1 10.77.2.1 r3 10.77.3.2
    node r3 3.0 r2 10.77.3.1 h2 10.77.4.2
    node h2 3.1 r3 10.77.4.1
    bench/peers/chain.sh up
    run_nodes h1 r1 r2 r3 h2
}

theirs() {
    bench/peers/chain.sh up
    wg_interfaces h1 r1 r2 r3 h2
    wg_peer h1 r1 10.77.1.2 10.99.0.0/24
    wg_peer r1 h1 10.77.1.1 10.99.0.1/32
    wg_peer r1 r2 10.77.2.2 10.99.0.3/32,10.99.0.4/32,10.99.0.5/32
    wg_peer r2 r1 10.77.2.1 10.99.0.1/32,10.99.0.2/32
    wg_peer r2 r3 10.77.3.2 10.99.0.4/32,10.99.0.5/32
    wg_peer r3 r2 10.77.3.1 10.99.0.1/32,10.99.0.2/32,10.99.0.3/32
    wg_peer r3 h2 10.77.4.2 10.99.0.5/32
    wg_peer h2 r3 10.77.4.1 10.99.0.0/24
    far=10.99.0.5
    inside h1 ping -c 5 -i 0.2 -q "$far" >/dev/null
}

declare -A far_of=()
for kind in "${kinds[@]}"; do
    use "$kind"
    pids=()
    case $kind in
        plain) circuits=off; ours ;;
        circuit) circuits=require; ours ;;
        *) theirs ;;
    esac
    far_of[$kind]=$far
    started+=("${pids[@]}")
done

for what in tcp udp ping; do
    for _ in $(seq "$reps"); do
        for kind in "${kinds[@]}"; do
            use "$kind"
            case $what in
                tcp) tcp "${far_of[$kind]}" 1 "$each" ;;
                udp) udp "${far_of[$kind]}" 1200 "$offered" "$each" ;;
                ping) rtt "${far_of[$kind]}" | cut -d/ -f2 ;;
            esac >>"$root/$what-$kind"
        done
    done
done
for kind in "${kinds[@]}"; do
    for what in tcp udp ping; do
        seen[$kind-$what]=$(cut -d' ' -f1 "$root/$what-$kind" | median)
    done
    lost=$(cut -d' ' -f2 "$root/udp-$kind" | median)
    echo "$kind: TCP ${seen[$kind-tcp]} Gbit/s; UDP ${seen[$kind-udp]} of $offered Gbit/s, $lost% lost;" \
        "ping ${seen[$kind-ping]} ms (medians of $reps)"
done
awk -v c="${seen[circuit-tcp]}" -v p="${seen[plain-tcp]}" -v w="${seen[wireguard-go-tcp]:-0}" \
    -v a="${seen[circuit-ping]}" -v b="${seen[plain-ping]}" 'BEGIN {
    printf "TCP over the circuit, relative to plain routing: %.2f (goal 0.75)\n", c / p
    if (w > 0) printf "TCP over the circuit, relative to wireguard-go: %.2f (goal 3)\n", c / w
    printf "round trip added by each relay: %.3f ms (goal 0.08)\n", (a - b) / 3 }'
