#!/usr/bin/env bash
# Interruption when a relay is killed. h1 and h2 use circuits over three of the relays r3 to r7; all
# routers are linked to each other. Once there is a standby circuit, the guard, the middle or the last
# relay of h1's circuit is killed (SIGKILL). The result is the longest gap between answers to pings
# sent every 10 ms. Each run is a new network, in which no node knows the relays from before.
# Needs root, iproute2, ping, jq, /dev/net/tun. DELAY delays the packets of each machine (tc netem).
# env: REPS=10  PLACES="guard middle last"  DELAY=ms
set -euo pipefail
cd "$(dirname "$0")/.."
reps=${REPS:-10} delay=${DELAY:-0}
read -ra places <<<"${PLACES:-guard middle last}"
target=${CARGO_TARGET_DIR:-target}
[ "$(id -u)" = 0 ] || { echo "needs root" >&2; exit 1; }
. bench/need.sh
need ip=iproute2 ping=iputils-ping jq=jq
[ -n "${NO_BUILD:-}" ] || cargo build --release --locked --quiet -p shoal-cli --bin shoal
shoal=${SHOAL:-$(realpath "$target/release/shoal")}
root=$(mktemp -d)
circuits=require prefix=onk$$ dir=$root/net pids=()
mkdir "$dir"
. bench/ip_common.sh
machines=(h1 h2 r1 r2 r3 r4 r5 r6 r7)

finish() {
    local status=$?
    [ "$status" = 0 ] || cat "$root/errors" >&2 || true
    stop_nodes
    for name in "${machines[@]}" switch; do ip netns del "$prefix-$name" 2>/dev/null || true; done
    rm -rf "$root"
}
trap finish EXIT

wires() {
    local n=0 name
    ip netns add "$prefix-switch"
    ip -n "$prefix-switch" link add lan type bridge
    ip -n "$prefix-switch" link set lan up
    for name in "${machines[@]}"; do
        n=$((n + 1))
        ip netns add "$prefix-$name"
        ip -n "$prefix-$name" link set lo up
        ip link add wire netns "$prefix-$name" type veth peer name "to_$name" netns "$prefix-switch"
        ip -n "$prefix-switch" link set "to_$name" master lan up
        ip -n "$prefix-$name" addr add "10.78.0.$n/24" dev wire
        ip -n "$prefix-$name" link set wire up
        [ "$delay" = 0 ] || inside "$name" tc qdisc add dev wire root netem delay "${delay}ms"
    done
}

# Neighbours of a machine and their addresses: all other routers for a router, its own router for a host.
links() { # name
    local n=0 other
    for other in "${machines[@]}"; do
        n=$((n + 1))
        case $1-$other in
            "$other-$1" | h?-h?) ;;
            h1-r1 | r1-h1 | h2-r2 | r2-h2 | r?-r?) echo "$other 10.78.0.$n" ;;
        esac
    done
}

# Relays of h1's circuit, over which h2 answers. Empty while there is no standby circuit.
relays() {
    "$shoal" circuits --socket "$dir/h1/control.sock" --json | jq -r '
        [.. | objects | select(.circuits?) | .circuits[] | select(type == "object")]
        | select(any(.state == "standby")) | map(select(.state == "in use"))[0].relays | join(" ")'
}

once() { # place -> ms
    local name address used dead=
    new_network
    for name in "${machines[@]}"; do
        address=${name:1}.0
        [ "${name:0:1}" = r ] || address=${name:1}.1
        # shellcheck disable=SC2046 # words of their own
        node "$name" "$address" $(links "$name")
    done
    run_nodes "${machines[@]}"
    inside h1 ping -i 0.2 -c 10 -q "$far" >/dev/null || true
    inside h1 ping -D -i 0.01 -w 13 "$far" >"$dir/ping" &
    local ping=$!
    for _ in $(seq 40); do
        sleep 0.1
        used=$(relays) && [ -n "$used" ] && break || true
    done
    sleep "2.$((RANDOM % 90 + 10))"
    read -ra used <<<"$(relays)"
    [ "${#used[@]}" = 3 ] || { echo "h1 has no circuit of three relays with a standby circuit" >&2; exit 1; }
    case $1 in guard) dead=${used[0]} ;; middle) dead=${used[1]} ;; last) dead=${used[2]} ;; esac
    kill -9 "${pid_of[$dead]}"
    wait "$ping" || true
    grep -q time= "$dir/ping" || { echo "no ping from h1 to h2 was answered" >&2; exit 1; }
    # The period ends 12 s after the first answer, so that a path that never recovers counts as a gap.
    awk -F'[][]' '/time=/{if (!first) first = t = $2; if ($2 - t > most) most = $2 - t; t = $2}
        END{if (first + 12 - t > most) most = first + 12 - t; printf "%.0f", most * 1000}' "$dir/ping"
    echo " $dead of ${used[*]}"
    stop_nodes 2>/dev/null
}

wires
for place in "${places[@]}"; do
    for _ in $(seq "$reps"); do once "$place" 2>>"$root/errors"; done >"$root/$place"
    awk -v p="$place" '{printf "  %s: %s\n", p, $0}' "$root/$place"
    awk '{print $1}' "$root/$place" | sort -g | awk -v p="$place" '{v[NR] = $1}
        END{print p ": median " v[int((NR + 1) / 2)] " ms, worst " v[NR] " ms, " NR " runs"}'
done
