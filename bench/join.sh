#!/usr/bin/env bash
# Duration and cost of joining. Machines in namespaces are connected by a switch that delays each
# packet by 10 ms (round trip 20 ms); the first machine is router and registrar.
#   1. time from `shoal up` to the first answered ping, without loss and with 5% of packets lost
#   2. 50 machines join and start at once; all must have the same list 5 s after the last one joined
#   3. 50 joins one after another: bytes per join on each of 10 links of other hosts
#   4. a million packets of strangers, and of `shoal up` with an invite of another network
# Exits with 1 if a goal is missed. Needs root, iproute2, ethtool, ping, jq, python3, /dev/net/tun.
# env: RUNS=20  JOINS=50  STRANGERS=1000000  PARTS="1 2 3 4"  SHOAL=program
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${RUNS:-20} joins=${JOINS:-50} strangers=${STRANGERS:-1000000} parts=${PARTS:-1 2 3 4}
target=${CARGO_TARGET_DIR:-target}
[ "$(id -u)" = 0 ] || { echo "needs root" >&2; exit 1; }
[ "$joins" -ge 10 ] || { echo "JOINS must be at least 10" >&2; exit 1; }
. bench/need.sh
need ip=iproute2 ping=iputils-ping jq=jq ethtool=ethtool python3=python3
[ -n "${SHOAL:-}${NO_BUILD:-}" ] || cargo build --release --locked --quiet -p shoal-cli --bin shoal
shoal=${SHOAL:-$(realpath "$target/release/shoal")}
dir=$(mktemp -d) prefix=join$$ missed=0 switch=
declare -A pid_of=()

inside() { ip netns exec "$prefix-$1" "${@:2}"; }
# Starts a program in a namespace. `end` stops it by its name.
spawn() { # name namespace command...
    (exec ip netns exec "$prefix-$2" "${@:3}") >>"$dir/$1.log" 2>&1 &
    pid_of[$1]=$!
}
end() { # names
    local name
    for name in "$@"; do kill "${pid_of[$name]}" 2>/dev/null || true; done
    for name in "$@"; do wait "${pid_of[$name]}" 2>/dev/null || true; unset "pid_of[$name]"; done
}
finish() {
    local status=$? name
    [ "$status" = 0 ] || tail -n 5 "$dir"/r1.log "$dir"/registrar.log >&2 2>/dev/null || true
    for name in "${!pid_of[@]}"; do kill "${pid_of[$name]}" 2>/dev/null || true; done
    [ -z "$switch" ] || kill "$switch" 2>/dev/null || true
    wait 2>/dev/null || true
    ip netns list | awk -v p="$prefix-" 'index($1, p) == 1{print $1}' | xargs -rn1 ip netns del
    rm -rf "$dir"
}
trap finish EXIT
goal() { # description value limit: missed if the value is above the limit
    local word=yes
    awk -v v="$2" -v l="$3" 'BEGIN{exit !(v <= l)}' || { word=NO; missed=1; }
    echo "  goal: $1 at most $3: $2, $word"
}

machine() { # name last-byte-of-its-address
    ip netns add "$prefix-$1"
    ip -n "$prefix-$1" link set lo up
    ip link add wire netns "$prefix-$1" type veth peer name "to_$1" netns "$prefix-switch"
    inside "$1" ethtool -K wire tx off tso off gso off gro off >/dev/null
    inside "$1" sysctl -qw net.ipv6.conf.wire.disable_ipv6=1
    inside switch sysctl -qw "net.ipv6.conf.to_$1.disable_ipv6=1"
    ip -n "$prefix-$1" link set wire gso_max_segs 1
    ip -n "$prefix-$1" addr add "10.79.0.$2/24" dev wire
    ip -n "$prefix-$1" link set wire up
    ip -n "$prefix-switch" link set "to_$1" promisc on up
}
switch_on() { # loss
    [ -z "$switch" ] || { kill "$switch"; wait "$switch" 2>/dev/null || true; }
    local ends
    ends=$(inside switch sh -c 'ls /sys/class/net' | grep ^to_)
    # shellcheck disable=SC2086 # one argument per word
    (exec ip netns exec "$prefix-switch" python3 bench/switch.py 10 "$1" $ends) &
    switch=$!
    sleep 0.5
}
ask() { inside r1 "$shoal" "$@" --json | tail -n 1; }
invite() { inside r1 "$shoal" invite -c "$dir/r1/registrar/registrar.toml" "$@" 2>/dev/null | grep ^SHOAL:1/; }
registrar() { ask registrar status -c "$dir/r1/registrar/registrar.toml"; }
steps() { # folder of a node: number of its supplements
    "$shoal" status -c "$1/node.toml" --json 2>/dev/null | tail -n 1 | jq '.status.authority.mandates[0].steps'
}
now() { echo "${EPOCHREALTIME/,/.}"; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN{printf "%.3f", b - a}'; }

ip netns add "$prefix-switch"
machine r1 1
for n in $(seq "$joins"); do machine "n$n" $((n + 10)); done
switch_on 0
inside r1 "$shoal" network create home --endpoint 10.79.0.1 --host r1 --no-start --dir "$dir/r1" \
    --authority "$dir/authority" >"$dir/created"
spawn r1 r1 "$shoal" run -c "$dir/r1/node.toml"
spawn registrar r1 "$shoal" registrar run -c "$dir/r1/registrar/registrar.toml"
for _ in $(seq 100); do registrar >/dev/null 2>&1 && steps "$dir/r1" >/dev/null && break; sleep 0.1; done
router=$(ask status -c "$dir/r1/node.toml" | jq -r .status.interface.address)

first_pings() { # label loss: sets median, most (95%), worst
    local n code began
    switch_on "$2"
    : >"$dir/first"
    for n in $(seq "$runs"); do
        code=$(invite)
        began=$(now)
        spawn "$1$n" n1 "$shoal" up "$code" --dir "$dir/$1$n" --name "$1$n"
        until inside n1 ping -c 1 -W 0.1 -q "$router" >/dev/null 2>&1; do
            sleep 0.01
            awk -v s="$(since "$began")" 'BEGIN{exit !(s > 60)}' && { echo "no ping from n1 to the router is answered after 60 s" >&2; exit 1; }
        done
        since "$began" >>"$dir/first"
        echo >>"$dir/first"
        end "$1$n" 2>/dev/null
    done
    read -r median most worst < <(sort -g "$dir/first" | awk '{v[NR] = $1}
        END{print v[int((NR + 1) / 2)], v[int(NR * 0.95 + 0.999)], v[NR]}')
}

if [[ " $parts " = *" 1 "* ]]; then
    for loss in 0 0.05; do
        first_pings "p${loss#0.}x" "$loss"
        echo "time until the first answered ping, loss $loss, $runs runs: median $median s, 95% $most s, worst $worst s"
        goal "median, seconds" "$median" 3
        goal "95%, seconds" "$most" 6
    done
    switch_on 0
fi

if [[ " $parts " = *" 2 "* ]]; then
    code=$(invite --uses "$joins")
    before=$(registrar | jq .registrar.members)
    began=$(now)
    for n in $(seq "$joins"); do
        spawn "n$n" "n$n" "$shoal" up "$code" --dir "$dir/n$n" --name "n$n"
    done
    until [ "$(registrar | jq .registrar.members)" -ge $((before + joins)) ]; do sleep 0.05; done
    took=$(since "$began")
    all=$(registrar | jq .registrar.steps)
    sleep 5
    differ=0
    for n in $(seq "$joins"); do [ "$(steps "$dir/n$n" || echo 0)" = "$all" ] || differ=$((differ + 1)); done
    [ "$(steps "$dir/r1")" = "$all" ] || differ=$((differ + 1))
    echo "$joins machines at once: the last one is a member after $took s; 5 s later $differ nodes lack a supplement"
    goal "seconds" "$took" 60
    goal "nodes that differ" "$differ" 0
    for n in $(seq 11 "$joins"); do end "n$n" 2>/dev/null; done
fi

# Bytes on the links of the ten hosts, in both directions.
on_links() {
    local n
    for n in $(seq 10); do inside "n$n" cat /sys/class/net/wire/statistics/{rx,tx}_bytes; done | awk '{s += $1} END{print s}'
}

if [[ " $parts " = *" 3 "* ]]; then
    for n in $(seq 10); do
        [ -n "${pid_of[n$n]:-}" ] || spawn "n$n" "n$n" "$shoal" up "$(invite)" --dir "$dir/n$n" --name "n$n"
    done
    sleep 8
    began=$(now) zero=$(on_links)
    code=$(invite --uses "$joins")
    for n in $(seq "$joins"); do
        inside r1 "$shoal" up "$code" --dir "$dir/b$n" --name "b$n" --no-start \
            --no-interface >/dev/null 2>&1
        sleep 0.3
    done
    sleep 2
    took=$(since "$began") busy=$(($(on_links) - zero)) zero=$(on_links)
    sleep "$took"
    idle=$(($(on_links) - zero))
    each=$(((busy - idle) / joins / 10))
    echo "$joins joins in $took s in a network of 10 hosts: $busy bytes on their links, $idle in the same time without joins"
    goal "bytes per join and link, both directions" "$each" 2000
fi

if [[ " $parts " = *" 4 "* ]]; then
    ip netns add "$prefix-a"
    ip link add near netns "$prefix-a" type veth peer name stranger netns "$prefix-r1"
    for end in a:near:2 r1:stranger:1; do
        IFS=: read -r at name last <<<"$end"
        inside "$at" sysctl -qw "net.ipv6.conf.$name.disable_ipv6=1"
        ip -n "$prefix-$at" addr add "10.80.0.$last/24" dev "$name"
        ip -n "$prefix-$at" link set "$name" up
    done
    mac() { inside "$1" cat "/sys/class/net/$2/address"; }
    # With fixed neighbour entries, only answers of Shoal come back.
    ip -n "$prefix-a" neigh replace 10.80.0.1 lladdr "$(mac r1 stranger)" dev near nud permanent
    ip -n "$prefix-r1" neigh replace 10.80.0.2 lladdr "$(mac a near)" dev stranger nud permanent
    door=$(registrar | jq -r '.registrar.endpoints[0]'); door=${door##*:}
    node=$(sed -n 's/^listen = \[".*:\([0-9]*\)".*/\1/p' "$dir/r1/node.toml" | head -n 1)
    # Another network, whose invites name this registrar's address.
    inside a "$shoal" network create foreign --endpoint 10.80.0.2:9 --registrar "10.80.0.1:$door" --host a \
        --no-interface --no-start --dir "$dir/a" --authority "$dir/foreign" >/dev/null
    spawn foreign a "$shoal" registrar run -c "$dir/a/registrar/registrar.toml"
    for _ in $(seq 50); do
        foreign=$(inside a "$shoal" invite -c "$dir/a/registrar/registrar.toml" 2>/dev/null | grep ^SHOAL:1/) && break
        sleep 0.1
    done
    end foreign 2>/dev/null
    back() { inside a cat /sys/class/net/near/statistics/rx_bytes; }
    lost() { inside r1 awk '/^Udp:/{print $6}' /proc/net/snmp | tail -n 1; }
    was=$(back) had=$(registrar) lost=$(lost)
    spawn up a "$shoal" up "$foreign" --dir "$dir/stranger" --name s --no-start --no-interface
    up=${pid_of[up]}
    began=$(now)
    inside a python3 bench/strangers.py 10.80.0.1 "$door" "$node" "$strangers" 5 >"$dir/sent"
    took=$(since "$began")
    code=0; wait "$up" || code=$?
    unset "pid_of[up]"
    sleep 0.5
    has=$(registrar)
    counted=$(jq -n --argjson a "$had" --argjson b "$has" \
        '($b.registrar.drops | map({(.[0]): .[1]}) | add) as $now
        | ($a.registrar.drops | map({(.[0]): .[1]}) | add // {}) as $before
        | $now | to_entries | map("\(.key) \(.value - ($before[.key] // 0))") | join(", ")' -r)
    echo "packets of strangers in $took s: $(cat "$dir/sent"); shoal up with a foreign invite exits with $code (3: no answer)"
    echo "  drops counted by the registrar: $counted; lost in full socket buffers: $(($(lost) - lost))"
    echo "  drops counted by the node: $(ask status -c "$dir/r1/node.toml" | jq -c '.status.drops // .status.dropped // empty')"
    goal "bytes sent back" $(($(back) - was)) 0
    goal "newcomers accepted" "$(jq -n --argjson a "$had" --argjson b "$has" '$b.registrar.welcomed - $a.registrar.welcomed')" 0
fi
exit "$missed"
