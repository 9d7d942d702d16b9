#!/usr/bin/env bash
# Cost of covered links, and tests if they reveal their traffic (docs/design/cover.md): h1 - r1 - h2
# with both links covered, and a router with many idle hosts, all covered.
# Needs root, iproute2, iperf3, ping, jq, tcpdump, /dev/net/tun.
# env: TIER=50 (Mbit/s, for TCP and ping)  SLOW=10 (Mbit/s, for idle hosts and times of frames)
#      HOSTS=20  SECONDS_EACH=10
#      RUNS=100  SPAN=2: runs of `times`; each has SPAN seconds idle, and SPAN seconds during which a
#                transfer begins and ends
#      FOLDS=6: periods of `fold`, each with ten seconds idle and ten busy
#      ONLY="tcp idle times fold"
set -euo pipefail
cd "$(dirname "$0")/.."
tier=${TIER:-50} slow=${SLOW:-10} hosts=${HOSTS:-20} runs=${RUNS:-100} span=${SPAN:-2}
each=${SECONDS_EACH:-10} only=${ONLY:-tcp idle times fold} folds=${FOLDS:-6} target=${CARGO_TARGET_DIR:-target}
[ "$(id -u)" = 0 ] || { echo "needs root" >&2; exit 1; }
. bench/need.sh
need ip=iproute2 sysctl=procps iperf3=iperf3 ping=iputils-ping jq=jq tcpdump=tcpdump
[ -n "${NO_BUILD:-}" ] || cargo build --release --locked --quiet -p shoal-cli --bin shoal
shoal=${SHOAL:-$(realpath "$target/release/shoal")}
root=$(mktemp -d) prefix="" dir="" made=() pids=()
export CHAIN_ROUTERS=1
. bench/ip_common.sh
finish() {
    stop_nodes
    local name
    for name in "${made[@]}"; do ip netns del "$name" 2>/dev/null || true; done
    rm -rf "$root"
}
trap finish EXIT

# Gives all hosts so far, and later ones, a cover tier of this rate. 0: no cover.
covered() { # Mbit/s
    [ "$1" = 0 ] && return
    sed -i '/^name = "h/a cover = "lab"' "$dir/hosts.toml"
    printf '[[cover]]\nname = "lab"\nmbit = %s\n' "$1" >>"$dir/hosts.toml"
}

pair() { # name Mbit/s: h1 - r1 - h2
    prefix=cov$$$1 dir=$root/$1
    export CHAIN_PREFIX=$prefix
    mkdir -p "$dir"
    new_network
    node h1 1.1 r1 10.77.1.2
    node r1 1.0 h1 10.77.1.1 h2 10.77.2.2
    node h2 1.2 r1 10.77.2.1
    covered "$2"
    bench/peers/chain.sh up
    made+=("$prefix-h1" "$prefix-r1" "$prefix-h2")
    run_nodes h1 r1 h2
}

cpu_ticks() { awk '{print $14 + $15}' "/proc/$1/stat"; }

cpu_share() { # pid seconds: percent of a core
    local before after
    before=$(cpu_ticks "$1")
    sleep "$2"
    after=$(cpu_ticks "$1")
    awk -v n=$((after - before)) -v s="$2" -v hz="$(getconf CLK_TCK)" 'BEGIN{printf "%.2f", 100 * n / hz / s}'
}

tcp_and_ping() {
    local plain plain_pids mss got
    pair p 0; plain=$(rtt "$far"); plain_pids=("${pids[@]}")
    pair c "$tier"
    echo "ping without cover, min/avg/max/mdev ms: $plain"
    local with; with=$(rtt "$far")
    echo "ping, both links at $tier Mbit/s:          $with"
    awk -v a="$plain" -v b="$with" -v t="$tier" 'BEGIN{
        split(a, p, "/"); split(b, c, "/"); f = int(sqrt(0.4 * t)); slot = 11.52 / t * (f > 1 ? f : 1)
        printf "added %.3f ms; the limit is two slots plus 1 ms: %.3f ms\n", c[2] - p[2], 2 * slot + 1}'
    for _ in 1 2 3; do
        inside h2 iperf3 -s -1 -D >/dev/null
        sleep 0.5
        inside h1 iperf3 -c "$far" -t "$each" -O 2 -C cubic -J >"$dir/tcp.json"
        mss=$(jq .start.tcp_mss_default "$dir/tcp.json")
        got=$(jq '.end.sum_received.bits_per_second / 1e6' "$dir/tcp.json")
        # TCP time stamps take 12 bytes of each segment.
        awk -v g="$got" -v m="$mss" -v t="$tier" 'BEGIN{
            all = t * (m - 12) / 1440
            printf "TCP: %.2f of %.2f Mbit/s that the slots can carry: %.3f\n", g, all, g / all}'
    done
    pids+=("${plain_pids[@]}")
    stop_nodes
}

idle() {
    prefix=cov$$i dir=$root/idle
    mkdir -p "$dir"
    new_network
    local n of=() links=()
    ip netns add "$prefix-r1"; made+=("$prefix-r1")
    ip -n "$prefix-r1" link set lo up
    for n in $(seq "$hosts"); do
        ip netns add "$prefix-h$n"; made+=("$prefix-h$n")
        ip link add "to_h$n" netns "$prefix-r1" type veth peer name to_r1 netns "$prefix-h$n"
        ip -n "$prefix-r1" addr add "10.78.$n.1/24" dev "to_h$n"
        ip -n "$prefix-h$n" addr add "10.78.$n.2/24" dev to_r1
        ip -n "$prefix-r1" link set "to_h$n" up
        ip -n "$prefix-h$n" link set to_r1 up
        ip -n "$prefix-h$n" link set lo up
        node "h$n" "1.$n" r1 "10.78.$n.1"
        links+=("h$n" "10.78.$n.2") of+=("h$n")
    done
    node r1 1.0 "${links[@]}"
    covered "$slow"
    run_nodes "${of[@]}" r1
    sleep 5
    echo "idle host at $slow Mbit/s: $(cpu_share "${pid_of[h1]}" 20)% of a core"
    echo "its router with $hosts such hosts: $(cpu_share "${pid_of[r1]}" 20)% of a core"
    stop_nodes
}

# Compares times of frames at h1's interface, in both directions, idle and during a transfer.
times() {
    pair t "$slow"
    local run busy good=0 all=0 way bytes
    # Half of the capacity of the slots in this time.
    bytes=$(awk -v m="$slow" -v s="$span" 'BEGIN{printf "%d", m * s / 8 / 2 * 1e6}')
    spawn h2 iperf3 -s >/dev/null 2>&1
    for run in $(seq "$runs"); do
        for busy in 0 1; do
            # The transfer begins after the capture and ends before it.
            [ "$busy" = 0 ] || { { sleep 0.4; inside h1 iperf3 -c "$far" -n "$bytes" -C cubic >/dev/null; } & }
            inside h1 timeout "$span" tcpdump -i to_r1 -nn -tt -q --time-stamp-precision=nano udp 2>/dev/null >"$dir/seen.$busy" || true
            [ "$busy" = 0 ] || wait $! || true
        done
        for way in 10.77.1.1 10.77.1.2; do
            for busy in 0 1; do
                # Full time stamps in nanoseconds exceed the precision of awk's numbers.
                awk -v from="$way.7400" -v busy="$busy" '$3 == from{
                    split($1, t, "."); now = t[1] % 100000 * 1e9 + t[2]
                    if (last) print busy, now - last; last = now}' "$dir/seen.$busy"
            done | sort -k2,2g | awk -f bench/ks.awk >"$dir/ks"
            echo "$way $(cat "$dir/ks")" >>"$dir/all"
            all=$((all + 1))
            good=$((good + $(awk '{print ($2 > 0.01)}' "$dir/ks")))
        done
    done
    echo "idle and busy times have the same distribution (p > 0.01) in $good of $all tests, half of them per direction"
    echo "frames per test: $(awk '{n += $4 + $5} END{printf "%.0f", n / NR}' "$dir/all")," \
        "largest D $(sort -k2,2gr "$dir/all" | head -n 1 | cut -d' ' -f2)"
    stop_nodes
}

# Compares the mean position of frames within their gaps, idle and during a transfer. All gaps have
# one length, so this shows delays that the distribution of gaps hides.
fold() {
    pair f "$slow"
    local n way dump
    spawn h2 iperf3 -s >/dev/null 2>&1
    # `exec`: otherwise the kill below would end only a shell around tcpdump.
    (exec ip netns exec "$prefix-h1" tcpdump -i to_r1 -nn -tt -q --time-stamp-precision=nano udp 2>/dev/null >"$dir/seen") &
    dump=$!
    sleep 1
    for n in $(seq "$folds"); do
        echo "$(date +%s.%N) 0" >>"$dir/spans"; sleep 10
        echo "$(date +%s.%N) 1" >>"$dir/spans"
        inside h1 iperf3 -c "$far" -t 10 -C cubic >/dev/null
    done
    kill "$dump"; wait "$dump" || true
    for way in 10.77.1.1 10.77.1.2; do
        awk -v from="$way.7400" -v mbit="$slow" '
            function ns(text, t) { split(text, t, "."); return t[1] % 100000 * 1e9 + t[2] }
            NR == FNR { began[++spans] = ns($1); busy[spans] = $2; next }
            $3 != from { next }
            {
                now = ns($1)
                if (!first) { first = now; f = int(sqrt(0.4 * mbit)); gap = 11.52e6 / mbit * (f > 1 ? f : 1) }
                while (at < spans && now >= began[at + 1]) at++
                # The first and the last second of each period are left out.
                if (!at || now < began[at] + 1e9 || (at < spans && now > began[at + 1] - 1e9)) next
                x = (now - first + gap / 2) % gap / 1000
                b = busy[at]; n[b]++; sum[b] += x; square[b] += x * x
            }
            END {
                for (b = 0; b < 2; b++) { mean[b] = sum[b] / n[b]; var[b] = (square[b] / n[b] - mean[b] ^ 2) / n[b] }
                d = mean[1] - mean[0]
                printf "frames of %s: busy ones are %.1f us later within their gaps, standard error %.1f us\n", from, d, sqrt(var[0] + var[1])
            }' "$dir/spans" "$dir/seen"
    done
    stop_nodes
}

for what in $only; do
    case $what in tcp) tcp_and_ping ;; idle) idle ;; times) times ;; fold) fold ;; *) echo "ONLY: unknown part $what (tcp, idle, times, fold)" >&2; exit 2 ;; esac
done
