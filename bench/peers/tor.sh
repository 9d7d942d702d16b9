#!/usr/bin/env bash
# A private Tor network over h1 - r1 - r2 - r3 - h2 in network namespaces: one relay on each of the
# three machines in the middle, the second also the directory authority, a client on h1 and a web
# server on h2. Every circuit takes r1, r2, r3 in this order.
# usage: tor.sh up default|tuned | fetch BYTES | rtt COUNT | down      env: TOR_PREFIX=ptor
#   fetch prints Gbit/s of one download; rtt prints the median in ms of COUNT requests of one byte
#   over one kept connection.
# Needs root, iproute2, tor, curl, python3.
set -euo pipefail
cd "$(dirname "$0")/../.."
P=${TOR_PREFIX:-ptor}
dir=/tmp/$P
export CHAIN_PREFIX=$P CHAIN_ROUTERS=3
inside() { ip netns exec "$P-$1" "${@:2}"; }

address() { echo "10.77.${1#r}.2"; }

common() { # name
    cat <<END
TestingTorNetwork 1
DataDirectory $dir/$1
Log notice file $dir/$1/log
Nickname ${1}shoalbench
RunAsDaemon 0
SafeLogging 0
User $(id -un)
ShutdownWaitLength 0
END
    if [ "$tuning" = tuned ]; then
        # Cells leave when they are there, not every 10 ms.
        echo 'Schedulers Vanilla'
    fi
}

relay() { # name
    mkdir -p "$dir/$1"
    { common "$1"; cat <<END
Address $(address "$1")
ORPort $(address "$1"):9001
AssumeReachable 1
ExitRelay 1
ExitPolicy accept *:*
ExitPolicyRejectPrivate 0
IPv6Exit 0
ContactInfo bench
END
    } >"$dir/$1/torrc"
}

up() {
    tuning=$1
    down
    mkdir -p "$dir"
    bench/peers/chain.sh up
    for n in r1 r2 r3; do relay "$n"; done
    authority
    local n
    : >"$dir/pids"
    for n in r2 r1 r3 h1; do
        (exec ip netns exec "$P-$n" tor -f "$dir/$n/torrc" >"$dir/$n/out" 2>&1) & echo $! >>"$dir/pids"
    done
    for n in r1 r2 r3; do
        for _ in $(seq 150); do [ -s "$dir/$n/fingerprint" ] && break; sleep 0.2; done
        [ -s "$dir/$n/fingerprint" ] || fail "the relay on $n did not start within 30 s"
    done
    steer >"$dir/steer" 2>&1 & echo $! >>"$dir/pids"
    web >"$dir/web" 2>&1 & echo $! >>"$dir/pids"
    local until=$((SECONDS + 120))
    while true; do
        [ "$(patience=5 get 1 2>/dev/null | cut -d' ' -f1)" = 1 ] && return
        [ $SECONDS -lt "$until" ] || break
        sleep 1
    done
    fail "no circuit over the private Tor network within two minutes"
}

# Says why, with the ends of all logs: the folder goes when the caller takes the network down.
fail() {
    tail -n 5 "$dir"/*/log "$dir"/*/out "$dir/steer" >&2 || true
    echo "$1" >&2
    exit 1
}

# Makes the authority's keys, its lines in r2's file, and the line about it in everybody's.
authority() {
    mkdir -p "$dir/r2/keys"
    (cd "$dir/r2/keys" && echo shoal | tor-gencert --create-identity-key --passphrase-fd 0 -m 12 \
        -a "$(address r2):7000" >/dev/null 2>&1)
    cat >>"$dir/r2/torrc" <<END
AuthoritativeDirectory 1
V3AuthoritativeDirectory 1
DirPort $(address r2):7000
TestingV3AuthInitialVotingInterval 5
TestingV3AuthInitialVoteDelay 2
TestingV3AuthInitialDistDelay 2
V3AuthVotingInterval 10
V3AuthVoteDelay 2
V3AuthDistDelay 2
TestingDirAuthVoteGuard *
TestingDirAuthVoteExit *
TestingMinExitFlagThreshold 0
END
    if [ "$tuning" = tuned ]; then
        # Windows of a fixed size, which Tor had before it had congestion control.
        echo "ConsensusParams cc_alg=0 circwindow=1000" >>"$dir/r2/torrc"
    fi
    local key v3 line n
    # The line of the authority must stand in every file, so keys are made first.
    key=$(tor --list-fingerprint -f "$dir/r2/torrc" --DirAuthority \
        "x orport=9001 v3ident=$(printf '0%.0s' {1..40}) $(address r2):7000 $(printf '0%.0s' {1..40})" \
        2>/dev/null | tail -n 1 | cut -d' ' -f2-)
    v3=$(grep -h '^fingerprint' "$dir/r2/keys/authority_certificate" | cut -d' ' -f2)
    line="DirAuthority r2 orport=9001 v3ident=$v3 $(address r2):7000 ${key// /}"
    mkdir -p "$dir/h1"
    {
        common h1
        printf 'SocksPort 127.0.0.1:9050\nControlPort 127.0.0.1:9051\nClientRejectInternalAddresses 0\n'
        printf 'EnforceDistinctSubnets 0\nConfluxEnabled 0\n'
    } >"$dir/h1/torrc"
    for n in r1 r2 r3 h1; do echo "$line" >>"$dir/$n/torrc"; done
}

# Leads every stream of the client over r1, r2 and r3. Left to itself, the client of so small a
# network may take no guard at all: flags depend on how long relays are up.
steer() {
    local path
    path=$(for n in r1 r2 r3; do awk '{printf "$%s,", $2}' "$dir/$n/fingerprint"; done)
    exec ip netns exec "$P-h1" python3 -c '
import socket, sys, time
path = sys.argv[1]
def connect():
    while True:
        try: return socket.create_connection(("127.0.0.1", 9051))
        except OSError: time.sleep(0.3)
s = connect()
f = s.makefile("rw", newline="\r\n")
def ask(line):
    f.write(line + "\n"); f.flush()
    while True:
        r = f.readline().rstrip()
        if not r: sys.exit("the control port was closed")
        if r.startswith("650"):
            events.append(r); continue
        if r[3:4] == " ":
            return r
events = []
ask("AUTHENTICATE"), ask("SETCONF __LeaveStreamsUnattached=1 __DisablePredictedCircuits=1"), ask("SETEVENTS STREAM CIRC")
built = None
def build():
    while True:
        said = ask("EXTENDCIRCUIT 0 " + path).split()
        if said[0] == "250": return said[2]
        time.sleep(1)
mine = build()
waiting = []
while True:
    line = events.pop(0) if events else f.readline().rstrip()
    if not line: break
    w = line.split()
    if w[1] == "CIRC" and w[2] == mine and w[3] == "BUILT": built = mine
    if w[1] == "CIRC" and w[2] == mine and w[3] in ("FAILED", "CLOSED"):
        built = None; time.sleep(1); mine = build()
    if w[1] == "STREAM" and w[3] == "NEW": waiting.append(w[2])
    if built:
        for stream in waiting: ask("ATTACHSTREAM %s %s" % (stream, built))
        waiting = []
' "${path%,}"
}

web() {
    exec ip netns exec "$P-h2" python3 -c '
import http.server, socketserver
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    block = bytes(1 << 20)
    def do_GET(self):
        n = int(self.path[1:])
        self.send_response(200); self.send_header("Content-Length", str(n)); self.end_headers()
        while n > 0:
            n -= self.wfile.write(self.block[:min(n, len(self.block))])
    def log_message(self, *a): pass
socketserver.ThreadingTCPServer(("10.77.4.2", 80), H).serve_forever()
'
}

get() { # bytes -> bytes seconds
    inside h1 curl -s -m "${patience:-60}" --socks5-hostname 127.0.0.1:9050 -o /dev/null \
        -w '%{size_download} %{time_starttransfer} %{time_total}\n' "http://10.77.4.2/$1"
}

fetch() { get "$1" | awk '{printf "%.4f\n", $1 * 8 / ($3 - $2) / 1e9}'; }

rtt() {
    local urls=() i
    for i in $(seq "$1"); do urls+=(-o /dev/null "http://10.77.4.2/1"); done
    inside h1 curl -s -m 60 --socks5-hostname 127.0.0.1:9050 \
        -w '%{time_starttransfer} %{time_pretransfer}\n' "${urls[@]}" |
        awk '{print ($1 - $2) * 1e3}' | tail -n +2 | sort -g | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'
}

down() {
    [ -f "$dir/pids" ] && xargs -r kill <"$dir/pids" 2>/dev/null || true
    bench/peers/chain.sh down
    rm -rf "${dir:?}"
}

"$@"
