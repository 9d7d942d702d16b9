# Sourced by other scripts: nodes with virtual interfaces in network namespaces, and measurements
# over them. Needs root, iproute2, iperf3, ping, jq, /dev/net/tun.
# The sourcing script sets: shoal (binary), dir (scratch folder), prefix (of the namespaces). With
# circuits=require, hosts reach each other over circuits only, and routers are relays.

inside() { ip netns exec "$prefix-$1" "${@:2}"; }
spawn() { (exec ip netns exec "$prefix-$1" "${@:2}") & pids+=($!); }
median() { sort -g | awk '{v[NR]=$1} END{if(NR) print v[int((NR+1)/2)]}'; }

new_network() {
    rm -rf "${dir:?}"/*
    "$shoal" genkey --network -o "$dir/network.key"
}

node() { # name address, then pairs: neighbour endpoint-address
    local name=$1 address=$2; shift 2
    mkdir -p "$dir/$name"
    "$shoal" genkey -o "$dir/$name/node.key"
    printf '[[host]]\nname = "%s"\naddress = "%s"\nkey = "%s"\n' "$name" "$address" \
        "$("$shoal" pubkey "$dir/$name/node.key")" >>"$dir/hosts.toml"
    [ "${circuits:-off}" = off ] || case $name in r*) printf 'relay = true\nfamily = "%s"\n' "$name" >>"$dir/hosts.toml" ;; esac
    {
        printf '[node]\nname = "%s"\naddress = "%s"\nkey_file = "node.key"\n' "$name" "$address"
        printf 'network_secret_file = "../network.key"\nhosts_file = "../hosts.toml"\n'
        printf 'listen = ["0.0.0.0:7400"]\ncontrol_socket = "control.sock"\n'
        while [ $# -gt 0 ]; do
            printf '[[link]]\npeer = "%s"\nendpoint = "%s:7400"\n' "$1" "$2"; shift 2
        done
        case $name in h*) printf '[interface]\n' ;; esac
        [ "${circuits:-off}" = off ] || case $name in h*) printf '[circuits]\npolicy = "%s"\n' "$circuits" ;; esac
    } >"$dir/$name/node.toml"
}

run_nodes() { # names; sets pids, pid_of, far
    local name
    declare -gA pid_of=()
    for name in "$@"; do
        spawn "$name" "$shoal" run -c "$dir/$name/node.toml" 2>"$dir/$name/log"
        pid_of[$name]=$!
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

stop_nodes() { kill "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null || true; pids=(); }

tcp() { # address streams seconds -> Gbit/s of payload at the receiver
    inside h2 iperf3 -s -1 -D >/dev/null
    sleep 0.5
    inside h1 iperf3 -c "$1" -t "$3" -P "$2" -C cubic -J | jq -r '.end.sum_received.bits_per_second / 1e9'
}

udp() { # address payload-bytes Gbit/s seconds -> "received-Gbit/s loss-percent"
    inside h2 iperf3 -s -1 -D >/dev/null
    sleep 0.5
    inside h1 iperf3 -c "$1" -u -l "$2" -b "$3G" -w 2M -t "$4" -J | jq -r '.end.sum |
        "\(.bits_per_second * (1 - .lost_percent / 100) / 1e9) \(.lost_percent)"'
}

udp_best() { # address payload-bytes rising rates... -> the highest received rate with a loss below 0.1%
    local rate got best=0
    for rate in "${@:3}"; do
        got=$(udp "$1" "$2" "$rate" 3)
        echo "  udp, sent $rate Gbit/s; received Gbit/s and loss in percent: $got" >&2
        best=$(awk -v b="$best" '{if ($2 < 0.1 && $1 > b) b = $1} END{print b}' <<<"$got")
        awk '{exit ($2 > 5)}' <<<"$got" || break
    done
    echo "$best"
}

rtt() { # address -> "min/avg/max/mdev ms"
    inside h1 ping -c 200 -i 0.005 -q "$1" | awk '/^rtt/{print $4}'
}

rtt_loaded() { # address seconds streams: pings during TCP transfers -> "min/avg/max/mdev ms"
    inside h2 iperf3 -s -1 -D >/dev/null
    sleep 0.5
    inside h1 iperf3 -c "$1" -t "$2" -P "$3" -C cubic -J >"$dir/loaded.json" & local load=$!
    sleep 1
    inside h1 ping -c $(((${2} - 2) * 50)) -i 0.02 -q "$1" | awk '/^rtt/{print $4}'
    wait "$load"
}

memory() { # peak resident memory of each node so far
    local name
    for name in "${!pid_of[@]}"; do
        awk -v n="$name" '/VmHWM/{printf "%s %.1f MiB  ", n, $2 / 1024}' "/proc/${pid_of[$name]}/status"
    done
    echo
}

wg_interfaces() { # names: starts wireguard-go in each namespace as w_NAME, with keys in dir/wg
    local name
    mkdir -p "$dir/wg"
    for name in "$@"; do
        (umask 077; wg genkey >"$dir/wg/$name.k"); wg pubkey <"$dir/wg/$name.k" >"$dir/wg/$name.p"
        spawn "$name" env WG_PROCESS_FOREGROUND=1 LOG_LEVEL=error "$wg" -f "w_$name"
    done
    sleep 1.5
    local i=1
    for name in "$@"; do
        inside "$name" wg set "w_$name" private-key "$dir/wg/$name.k" listen-port 51820
        ip -n "$prefix-$name" addr add "10.99.0.$i/24" dev "w_$name"
        ip -n "$prefix-$name" link set "w_$name" mtu 1420 up
        i=$((i + 1))
    done
}

wg_peer() { # at peer endpoint allowed-addresses
    inside "$1" wg set "w_$1" peer "$(cat "$dir/wg/$2.p")" endpoint "$3:51820" allowed-ips "$4"
}

declare -A seen=()

measure() { # label: prints all figures, and stores those to compare in `seen`
    local label=$1 streams figure
    echo "$label: ping idle, min/avg/max/mdev ms: $(rtt "$far")"
    # One and ten streams alternate, since the machine's speed changes from minute to minute.
    for _ in $(seq "$reps"); do
        for streams in 1 10; do
            figure=$(tcp "$far" "$streams" "$each")
            echo "  streams $streams: $figure" >&2
            echo "$streams $figure"
        done
    done >"$dir/streams"
    for streams in 1 10; do
        seen[$label-tcp$streams]=$(awk -v s="$streams" '$1 == s{print $2}' "$dir/streams" | median)
        echo "$label: TCP, streams $streams: ${seen[$label-tcp$streams]} Gbit/s (median of $reps)"
    done
    seen[$label-udp]=$(udp_best "$far" 1300 "${rates[@]}")
    echo "$label: UDP of 1300 bytes with a loss below 0.1%: ${seen[$label-udp]} Gbit/s"
    echo "$label: ping during one TCP stream, min/avg/max/mdev ms: $(rtt_loaded "$far" 5 1)"
    echo "$label: ping during ten TCP streams, min/avg/max/mdev ms: $(rtt_loaded "$far" 5 10)"
}

peer_is_there() {
    [ "$wg" = none ] && return 1
    has_wireguard "$wg"
}

compare() { # goal
    local what
    for what in tcp1 tcp10 udp; do
        awk -v w="$what" -v o="${seen[shoal-$what]}" -v p="${seen[wireguard-go-$what]}" -v g="$1" \
            'BEGIN{if (p > 0) printf "ratio, %s: %.2f (goal %s)\n", w, o / p, w == "udp" ? 2.5 : g}'
    done
}
