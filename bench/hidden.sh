#!/usr/bin/env bash
# The eight commands of "A hidden network" in docs/start/quickstart.md: five routers of three operators
# and two hosts, each in a namespace of its own, on one bridge. Prints when each command was done, and
# `shoal hidden` of both hosts. Exits with 0 if all promises of the preset hold within LIMIT seconds.
# Needs root, iproute2, /dev/net/tun.
# env: LIMIT=60  SHOAL=path of shoal (default: built here)
set -euo pipefail
cd "$(dirname "$0")/.."
limit=${LIMIT:-60} target=${CARGO_TARGET_DIR:-target}
[ "$(id -u)" = 0 ] || { echo "needs root" >&2; exit 1; }
. bench/need.sh
need ip=iproute2
[ -n "${SHOAL:-}" ] || cargo build --release --locked --quiet -p shoal-cli --bin shoal
shoal=${SHOAL:-$(realpath "$target/release/shoal")}

names=(one two three four five six seven) prefix=hidden$$ dir=$(mktemp -d) pids=()
inside() { ip netns exec "$prefix-$1" "${@:2}"; }
finish() {
    kill "${pids[@]}" 2>/dev/null || true
    wait
    for name in "${names[@]}" bridge; do ip netns del "$prefix-$name" 2>/dev/null || true; done
    rm -rf "$dir"
}
trap finish EXIT

ip netns add "$prefix-bridge"
ip -n "$prefix-bridge" link add br0 type bridge
ip -n "$prefix-bridge" link set br0 up
for n in "${!names[@]}"; do
    name=${names[n]}
    ip netns add "$prefix-$name"
    ip link add "to$n" netns "$prefix-bridge" type veth peer name eth0 netns "$prefix-$name"
    ip -n "$prefix-bridge" link set "to$n" master br0 up
    ip -n "$prefix-$name" link set lo up
    ip -n "$prefix-$name" addr add "192.0.2.$((n + 1))/24" dev eth0
    ip -n "$prefix-$name" link set eth0 up
    ip -n "$prefix-$name" route add default via 192.0.2.250
done

began=$(date +%s%N)
since() { awk -v ns="$(($(date +%s%N) - began))" 'BEGIN { printf "%6.2f s", ns / 1e9 }'; }
# Waits until a file has so many lines with a text.
has() { # file, text, count
    until [ "$(grep -c "$2" "$1")" -ge "$3" ]; do
        [ "$(($(date +%s%N) - began))" -lt "${limit}000000000" ] || { cat "$1" >&2; exit 1; }
        sleep 0.05
    done
}
up() { # name, invite, more
    inside "$1" "$shoal" up - --dir "$dir/$1" --name "$1" "${@:3}" <<<"$2" >"$dir/$1.log" 2>&1 & pids+=($!)
    has "$dir/$1.log" ready 1
    echo "$(since)  shoal up on $1"
}

inside one "$shoal" network create home --preset hidden --uses 2 --endpoint 192.0.2.1 \
    --dir "$dir/one" --authority "$dir/authority" >"$dir/one.log" 2>&1 & pids+=($!)
has "$dir/one.log" '^SHOAL:' 3
echo "$(since)  shoal network create on one"
mapfile -t invites < <(grep '^SHOAL:' "$dir/one.log")
up two "${invites[0]}" --endpoint 192.0.2.2
up three "${invites[0]}" --endpoint 192.0.2.3
up four "${invites[1]}" --endpoint 192.0.2.4
up five "${invites[1]}" --endpoint 192.0.2.5
up six "${invites[2]}"
up seven "${invites[2]}"
for pair in "six seven" "seven six"; do
    read -r here there <<<"$pair"
    until inside "$here" "$shoal" hidden "$there" -c "$dir/$here/node.toml" >"$dir/hidden" 2>&1; do
        [ "$(($(date +%s%N) - began))" -lt "${limit}000000000" ] || { cat "$dir/hidden" >&2; exit 1; }
    done
    cat "$dir/hidden"
    echo "$(since)  shoal hidden $there on $here: exit code 0"
done
