#!/usr/bin/env bash
# Cost of a flood at expired addresses for a node whose addresses shift: h1 - r1 - r2 - h2 in
# namespaces, TCP of programs at 200 Mbit/s, and a stranger who floods r1 with single packets.
#   calm     flood to an expired address; nftables drops it before it reaches a socket
#   expired  flood to an expired address without nftables; the node's filter in the kernel drops it
#   live     flood to an address in use
# Goals: TCP during `expired` at least 0.95 of `calm`; the node's CPU at most half of `live`; each
# frame sent is counted as stale_address. Exits with 1 if a goal is missed.
# Needs root, iproute2, nftables, iperf3, jq, python3, /dev/net/tun.
# env: FRAMES=100000 (per second)  SECONDS_EACH=7  SHOAL=program
set -euo pipefail
cd "$(dirname "$0")/.."
frames=${FRAMES:-100000} each=${SECONDS_EACH:-7} interval=10
target=${CARGO_TARGET_DIR:-target}
[ "$(id -u)" = 0 ] || { echo "needs root" >&2; exit 1; }
[ "$each" -lt "$interval" ] || { echo "SECONDS_EACH must be less than $interval, the time for which an address is used" >&2; exit 1; }
. bench/need.sh
need ip=iproute2 nft=nftables iperf3=iperf3 jq=jq python3=python3
[ -n "${SHOAL:-}${NO_BUILD:-}" ] || cargo build --release --locked --quiet -p shoal-cli --bin shoal
shoal=${SHOAL:-$(realpath "$target/release/shoal")}
dir=$(mktemp -d) prefix=flood$$ pids=() missed=0
declare -A pid_of=()

inside() { ip netns exec "$prefix-$1" "${@:2}"; }
finish() {
    local status=$? name
    [ "$status" = 0 ] || tail -n 5 "$dir"/*/log >&2 2>/dev/null || true
    kill "${pids[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    for name in h1 r1 r2 h2 s; do ip netns del "$prefix-$name" 2>/dev/null || true; done
    rm -rf "$dir"
}
trap finish EXIT

wire() { # number from to: addresses fd00:NUMBER::1 and ::2
    ip link add "to-$3" netns "$prefix-$2" type veth peer name "to-$2" netns "$prefix-$3"
    ip -n "$prefix-$2" addr add "fd00:$1::1/64" dev "to-$3" nodad
    ip -n "$prefix-$3" addr add "fd00:$1::2/64" dev "to-$2" nodad
    ip -n "$prefix-$2" link set "to-$3" up
    ip -n "$prefix-$3" link set "to-$2" up
}
shifts() { echo "fd77:a:0:$1::/64"; }
node() { # name address number, then pairs: neighbour endpoint
    local name=$1 address=$2 number=$3; shift 3
    mkdir -p "$dir/$name"
    "$shoal" genkey -o "$dir/$name/node.key"
    printf '[[host]]\nname = "%s"\naddress = "%s"\nkey = "%s"\n' "$name" "$address" \
        "$("$shoal" pubkey "$dir/$name/node.key")" >>"$dir/hosts.toml"
    {
        printf '[node]\nname = "%s"\naddress = "%s"\nkey_file = "node.key"\n' "$name" "$address"
        printf 'network_secret_file = "../network.key"\nhosts_file = "../hosts.toml"\n'
        printf 'listen = ["[::]:7400"]\ncontrol_socket = "control.sock"\n'
        printf '[shift]\nprefix = "%s"\n' "$(shifts "$number")"
        while [ $# -gt 0 ]; do
            printf '[[link]]\npeer = "%s"\nendpoint = "[%s]:7400"\nshift = "%ss"\n' "$1" "$2" "$interval"
            shift 2
        done
        case $name in h*) printf '[interface]\n' ;; esac
    } >"$dir/$name/node.toml"
}
route() { # in to via
    ip -n "$prefix-$1" -6 route add "$(shifts "$2")" via "$3"
}

for name in h1 r1 r2 h2 s; do
    ip netns add "$prefix-$name"
    ip -n "$prefix-$name" link set lo up
    inside "$name" sysctl -qw net.ipv6.conf.default.accept_dad=0
done
wire 1 h1 r1; wire 2 r1 r2; wire 3 r2 h2; wire 4 s r1
# No aggregation: each frame of the flood is one packet.
ip -n "$prefix-s" link set to-r1 gso_max_segs 1
route h1 2 fd00:1::2; route r1 1 fd00:1::1; route r1 3 fd00:2::2; route r2 2 fd00:2::1
route r2 4 fd00:3::2; route h2 3 fd00:3::1; route s 2 fd00:4::2
"$shoal" genkey --network -o "$dir/network.key"
node h1 1.1 1 r1 fd00:1::2
node r1 1.0 2 h1 fd00:1::1 r2 fd00:2::2
node r2 2.0 3 r1 fd00:2::1 h2 fd00:3::2
node h2 2.1 4 r2 fd00:3::1
inside r1 nft "add table ip6 watch; add set ip6 watch seen { type ipv6_addr; flags dynamic, timeout; }; \
    add chain ip6 watch in { type filter hook input priority 0; }; \
    add rule ip6 watch in iifname \"to-r2\" ip6 daddr $(shifts 2) update @seen { ip6 daddr timeout 2s }"
for name in h1 r1 r2 h2; do
    (exec ip netns exec "$prefix-$name" "$shoal" run -c "$dir/$name/node.toml") 2>"$dir/$name/log" &
    pids+=($!) pid_of[$name]=$!
done
far=$("$shoal" check -c "$dir/h2/node.toml" --json | jq -r .check.interface.address)
ask() { "$shoal" "$@" -c "$dir/r1/node.toml" --json; }
shifting() { ask peers | jq -e '[.peers[].shift.state] | all(. == "shifting")' >/dev/null; }
for _ in $(seq 300); do
    ! { inside h1 ping -c 1 -W 1 -q "$far" >/dev/null 2>&1 && shifting; } || break
    sleep 0.2
done
shifting || { echo "r1's addresses do not shift" >&2; exit 1; }

cat >"$dir/flood.py" <<'PY'
import os, socket, struct, sys, time
to, rate, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.connect((to, 7400))
s.setsockopt(17, 103, 1440)  # UDP_SEGMENT
burst, sent, begin = os.urandom(40 * 1440), 0, time.monotonic()
while (now := time.monotonic() - begin) < seconds:
    if sent < now * rate:
        s.send(burst)
        sent += 40
    else:
        time.sleep(0.0005)
print(sent)
PY
seen() { inside r1 nft -j list set ip6 watch seen | jq -r '[.. | .elem? // empty | objects | .val][0] // empty'; }
# Waits for a new epoch, and prints the address at which r2 reaches r1 in it.
fresh() {
    local before now
    before=$(seen)
    while now=$(seen); [ -z "$now" ] || [ "$now" = "$before" ]; do
        inside h1 ping -c 1 -W 1 -q "$far" >/dev/null || true
        sleep 0.2
    done
    echo "$now"
}
cpu() { awk '{print $14 + $15}' "/proc/${pid_of[r1]}/stat"; }
dropped() { ask status | jq --arg r "$1" '[.status.drops[] | select(.[0] == $r) | .[1]][0] // 0'; }
declare -A speed=() used=() sent=() counted=() over=()
measure() { # label address
    local before cpu_before over_before flood
    before=$(dropped stale_address) over_before=$(dropped receive_overflow) cpu_before=$(cpu)
    inside h2 iperf3 -s -1 -D >/dev/null
    sleep 0.3
    inside s python3 "$dir/flood.py" "$2" "$frames" "$each" >"$dir/sent" & flood=$!
    speed[$1]=$(inside h1 iperf3 -c "$far" -t "$((each - 1))" -b 200M -C cubic -J |
        jq -r '.end.sum_received.bits_per_second / 1e6')
    wait "$flood"
    sleep 0.3
    sent[$1]=$(cat "$dir/sent")
    counted[$1]=$(($(dropped stale_address) - before)) over[$1]=$(($(dropped receive_overflow) - over_before))
    used[$1]=$(($(cpu) - cpu_before))
    printf '%-8s TCP %6.1f Mbit/s, node %4d ticks of CPU, sent %7d, stale_address %7d, receive_overflow %d\n' \
        "$1" "${speed[$1]}" "${used[$1]}" "${sent[$1]}" "${counted[$1]}" "${over[$1]}"
}
goal() { # description, condition in awk
    local word=yes
    awk "BEGIN{exit !($2)}" || { word=NO missed=1; }
    echo "  goal: $1: $word"
}

ask status | jq -r '"filter: \(.status.shift.filter), \(.status.shift.addresses) addresses in use"'
at=$(fresh)
measure live "$at"
echo "waiting until that address has expired"
sleep $((2 * interval + 3))
inside r1 nft "add table ip6 calm; add chain ip6 calm in { type filter hook prerouting priority -300; }; \
    add rule ip6 calm in iifname \"to-s\" counter drop"
measure calm "$at"
inside r1 nft delete table ip6 calm
measure expired "$at"
goal "TCP at least 0.95 of calm" "${speed[expired]} >= 0.95 * ${speed[calm]}"
goal "CPU at most half of live" "${used[expired]} <= 0.5 * ${used[live]}"
goal "every frame counted" "${counted[expired]} == ${sent[expired]}"
exit "$missed"
