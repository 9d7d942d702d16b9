#!/usr/bin/env bash
# A private Tor network over h1 - r1 - r2 - r3 - h2, with default settings and tuned. Measures one
# download over a three-hop circuit, and the time of a one-byte request. `bench/onion_chain.sh`
# measures Shoal over the same number of machines. Needs root, iproute2, tor, curl, python3.
# env: REPS=3  BYTES=100000000
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "needs root" >&2; exit 1; }
. bench/need.sh
need ip=iproute2 tor=tor tor-gencert=tor curl=curl python3=python3
export TOR_PREFIX=ptor$$
trap 'bench/peers/tor.sh down' EXIT
for tuning in default tuned; do
    bench/peers/tor.sh up "$tuning"
    for _ in $(seq "${REPS:-3}"); do bench/peers/tor.sh fetch "${BYTES:-100000000}"; done >"/tmp/$TOR_PREFIX/rates"
    rate=$(sort -g "/tmp/$TOR_PREFIX/rates" | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}')
    echo "tor, $tuning: $rate Gbit/s (median of ${REPS:-3}); a request takes $(bench/peers/tor.sh rtt 100) ms (median)"
    bench/peers/tor.sh down
done
