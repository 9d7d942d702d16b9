#!/usr/bin/env bash
# UDP datagrams of 50 bytes through h1 - r1 - r2 - h2 over Shoal's virtual interface: the highest rate
# with a loss below 0.1%. One sender puts many datagrams into one system call; the other is iperf3,
# which needs two calls per datagram. Both are also measured over the first wire without Shoal.
# Then prints the lengths of frames on the wire between the routers.
# Needs root, iproute2, ping, jq, python3, iperf3, tcpdump.
# env: RATES="150 200 250 300 350 400 500 600" (thousands per second)  SECONDS_EACH=4  REPS=3
set -euo pipefail
cd "$(dirname "$0")/.."
each=${SECONDS_EACH:-4} reps=${REPS:-3} payload=50
read -ra rates <<<"${RATES:-150 200 250 300 350 400 500 600}"
target=${CARGO_TARGET_DIR:-target}
[ "$(id -u)" = 0 ] || { echo "needs root" >&2; exit 1; }
. bench/need.sh
need ip=iproute2 ping=iputils-ping jq=jq python3=python3 iperf3=iperf3 tcpdump=tcpdump
[ -n "${SHOAL:-}${NO_BUILD:-}" ] || cargo build --release --locked --quiet -p shoal-cli --bin shoal
shoal=$(realpath "${SHOAL:-$target/release/shoal}")
prefix=ips$$ dir=$(mktemp -d) pids=()
export CHAIN_PREFIX=$prefix
. bench/ip_common.sh
trap 'stop_nodes; bench/peers/chain.sh down; rm -rf "$dir"' EXIT

many() { # to address thousands-per-second -> "received-thousands loss-percent"
    inside "$1" timeout 60 python3 bench/small.py receive "$2" $((each + 2)) >"$dir/came" & local receiver=$!
    sleep 0.5
    inside h1 timeout 60 python3 bench/small.py send "$2" "$each" "$(($3 * 1000))" "$payload" >"$dir/left"
    wait "$receiver"
    awk -v s="$each" 'NR == FNR{left = $1; next} {printf "%.1f %.3f\n", $1 / s / 1e3, 100 * (1 - $1 / left)}' \
        "$dir/left" "$dir/came"
}
each_alone() { # to address thousands-per-second, sent by iperf3
    inside "$1" iperf3 -s -1 -D >/dev/null
    sleep 0.5
    inside h1 iperf3 -c "$2" -u -l "$payload" -b "$(($3 * payload * 8))K" -w 4M -t "$each" -J | jq -r '.end.sum |
        "\(.packets / .seconds / 1e3 * (1 - .lost_percent / 100) * 10 | round / 10) \(.lost_percent)"'
}
best() { # sender to address: prints the median, over REPS series, of the highest rate with less than 0.1% lost
    local rate got all=()
    for _ in $(seq "$reps"); do
        local most=0
        for rate in "${rates[@]}"; do
            got=$("$1" "$2" "$3" "$rate")
            echo "    sent $rate; received, and loss in percent: $got" >&2
            most=$(awk -v b="$most" '{if ($2 < 0.1 && $1 > b) b = $1} END{print b}' <<<"$got")
            awk '{exit ($2 > 5)}' <<<"$got" || break
        done
        all+=("$most")
    done
    printf '%s\n' "${all[@]}" | median
}

new_network
node h1 1.1 r1 10.77.1.2
node r1 1.0 h1 10.77.1.1 r2 10.77.2.2
node r2 2.0 r1 10.77.2.1 h2 10.77.3.2
node h2 2.1 r2 10.77.3.1
bench/peers/chain.sh up
run_nodes h1 r1 r2 h2
"$shoal" status -c "$dir/h1/node.toml" | grep -i "processor\|cipher" || true
echo "ping idle, min/avg/max/mdev ms: $(rtt "$far")"
echo "many per call:  $(best many h2 "$far") thousand per second"
echo "iperf3:         $(best each_alone h2 "$far")"
echo "many per call, without Shoal, one wire:  $(best many r1 ::ffff:10.77.1.2)"
echo "iperf3, without Shoal, one wire:         $(best each_alone r1 10.77.1.2)"
wire=$(inside r1 ip -o route get 10.77.2.2 | sed 's/.* dev \([^ ]*\).*/\1/')
(exec ip netns exec "$prefix-r1" timeout 20 tcpdump -n -i "$wire" -c 20000 udp >"$dir/seen" 2>/dev/null) & seen=$!
sleep 1
many h2 "$far" 200 >/dev/null
kill "$seen" 2>/dev/null || true
wait "$seen" 2>/dev/null || true
echo "datagrams by length on the wire between the routers (longer ones are segmented after the capture):"
awk '/length/{n[$NF]++} END{for (l in n) print "  " l, n[l]}' "$dir/seen" | sort -g
