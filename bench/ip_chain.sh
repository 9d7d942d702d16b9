#!/usr/bin/env bash
# iperf3 TCP through h1 - r1 - r2 - h2 over Shoal's virtual interface, beside wireguard-go hop by hop
# over the same chain in the same run. Needs root, iproute2, iperf3, ping, jq, /dev/net/tun;
# wireguard-tools and wireguard-go for the peer.
# env: SECONDS_EACH=5  REPS=3  STREAMS=1  WG=path of wireguard-go ("none": Shoal alone)
set -euo pipefail
cd "$(dirname "$0")/.."
each=${SECONDS_EACH:-5} reps=${REPS:-3} streams=${STREAMS:-1}
target=${CARGO_TARGET_DIR:-target}
[ "$(id -u)" = 0 ] || { echo "needs root" >&2; exit 1; }
[ -n "${NO_BUILD:-}" ] || cargo build --release --locked --quiet --bin shoal
shoal=$(realpath "$target/release/shoal")

export CHAIN_PREFIX=ipc$$
dir=$(mktemp -d)
pids=()
down() { kill "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null || true; pids=(); bench/peers/chain.sh down; }
trap 'down; rm -rf "$dir"' EXIT
inside() { ip netns exec "$CHAIN_PREFIX-$1" "${@:2}"; }

node() { # name address listen-port-address neighbours("name endpoint" or "name")
    local name=$1 address=$2; shift 2
    mkdir -p "$dir/$name"
    "$shoal" genkey -o "$dir/$name/node.key"
    printf '[[host]]\nname = "%s"\naddress = "%s"\nkey = "%s"\n' "$name" "$address" \
        "$("$shoal" pubkey "$dir/$name/node.key")" >>"$dir/hosts.toml"
    {
        printf '[node]\nname = "%s"\naddress = "%s"\nkey_file = "node.key"\n' "$name" "$address"
        printf 'network_secret_file = "../network.key"\nhosts_file = "../hosts.toml"\n'
        printf 'listen = ["0.0.0.0:7400"]\ncontrol_socket = "control.sock"\n'
        while [ $# -gt 0 ]; do
            printf '[[link]]\npeer = "%s"\nendpoint = "%s:7400"\n' "$1" "$2"; shift 2
        done
        case $name in h*) printf '[interface]\n' ;; esac
    } >"$dir/$name/node.toml"
}

start() {
    rm -rf "${dir:?}"/*
    "$shoal" genkey --network -o "$dir/network.key"
    node h1 1.1 r1 10.77.1.2
    node r1 1.0 h1 10.77.1.1 r2 10.77.2.2
    node r2 2.0 r1 10.77.2.1 h2 10.77.3.2
    node h2 2.1 r2 10.77.3.1
    bench/peers/chain.sh up
    local name
    for name in h1 r1 r2 h2; do
        inside "$name" "$shoal" run -c "$dir/$name/node.toml" 2>"$dir/$name/log" & pids+=($!)
    done
    far=$("$shoal" check -c "$dir/h2/node.toml" --json | jq -r .check.interface.address)
    for _ in $(seq 100); do
        inside h1 ping -c 1 -W 1 -q "$far" >/dev/null 2>&1 && return
        sleep 0.1
    done
    echo "no answer over the interface:" >&2
    tail -n 5 "$dir"/*/log >&2
    exit 1
}

ours() { # -> Gbit/s
    inside h2 iperf3 -s -1 -D >/dev/null
    sleep 0.5
    inside h1 iperf3 -c "$far" -t "$each" -P "$streams" -C cubic -J |
        jq -r '.end.sum_received.bits_per_second / 1e9'
}

peer() { # -> Gbit/s, or nothing
    local wg=${WG:-$HOME/go/bin/wireguard}
    if [ ! -x "$wg" ] || ! command -v wg >/dev/null; then
        [ "$wg" = none ] || echo "MISSING: wireguard-go (go install golang.zx2c4.com/wireguard@latest) or wg" >&2
        return 0
    fi
    WG=$wg T=$each IPERF_ARGS="-C cubic -f m -P $streams" CHAIN_PREFIX=${CHAIN_PREFIX}w bench/peers/wg_chain.sh |
        awk '/rtt/{print "wireguard-go ping:", $0 >"/dev/stderr"}
             /receiver/{for(i=1;i<NF;i++)if($(i+1)=="Mbits/sec"){last=$i/1000}} END{print last}'
}

median() { sort -g | awk '{v[NR]=$1} END{if(NR) print v[int((NR+1)/2)]}'; }
start
inside h1 ping -c 200 -i 0.005 -q "$far" | awk '/rtt/{print "shoal ping:", $0}' >&2
us=$(for _ in $(seq "$reps"); do ours; done | tee /dev/stderr | median)
inside h1 "$shoal" -c "$dir/h1/node.toml" status >&2
inside h2 "$shoal" -c "$dir/h2/node.toml" status | grep -E "dropped|uses" >&2
down
them=$(for _ in $(seq "$reps"); do peer; done | tee /dev/stderr | median)
awk -v p="${them:-0}" -v o="$us" 'BEGIN {
    printf "shoal           %.2f Gbit/s of TCP payload\n", o
    if (p > 0) printf "wireguard-go    %.2f Gbit/s\nratio           %.2f (goal 3.5)\n", p, o / p
}'
