#!/usr/bin/env python3
"""Nebula between the translators of `shoal-lab run nat-matrix`, with the same measures.

nebula_nat.py [RUNS]     20 runs of each pair, all pairs at once; needs root, ip, nft, ping
env: LOSS=0              share of packets lost between any two machines (0.0975: 5% on each of the
                         two wires that scenarios have there)
     RELAY=1             0: nobody relays, so that pairs without a way of their own have none
     WAIT=8              seconds that a pair is watched
     NEBULA_DIR=DIR      where nebula and nebula-cert are, if not where `go install` puts them

Machines are 20 ms apart, each way. One that can be called is Nebula's lighthouse and relay. A ping
each 50 ms tells how soon the first answer comes, and the first over a way of their own: through the
relay it takes 80 ms, else 40 or less. Without Nebula it says so, and ends with 0: nothing rests on it.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 20
LOSS, WAIT = os.environ.get("LOSS", "0"), float(os.environ.get("WAIT", "8"))
RELAY = os.environ.get("RELAY", "1") == "1"
DIRECT_MS, PREFIX = 60.0, f"neb{os.getpid()}"
HERE = os.path.dirname(os.path.abspath(__file__))
# Pairs, whether one translator is for both, and whether they can have a way of their own.
CELLS = [
    ("public", "public", False, True), ("public", "easy", False, True),
    ("public", "twice", False, True), ("hard", "public", False, True),
    ("easy", "easy", False, True), ("easy", "twice", False, True),
    ("twice", "twice", False, True), ("easy", "hard", False, False),
    ("hard", "hard", False, False), ("easy", "mapped", False, True),
    ("hard", "mapped", False, True), ("easy", "easy", True, True),
    ("hard", "hard", True, True), ("mapped", "mapped", True, True),
]


def tool(name):
    go_path = os.environ.get("GOPATH", os.path.expanduser("~/go"))
    places = [os.environ.get("NEBULA_DIR", ""), os.path.join(go_path, "bin")]
    found = [os.path.join(place, name) for place in places if place] + [shutil.which(name) or ""]
    return next((path for path in found if os.access(path, os.X_OK)), None)


def sh(*words, text=None):
    done = subprocess.run(words, input=text, text=True, capture_output=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr}")
    return done.stdout


class Ground:
    """Namespaces, wires, translators."""

    def __init__(self):
        self.spaces, self.outer, self.lans, self.switch = [], 0, 0, None
        self.space("switch")

    def space(self, name):
        sh("ip", "netns", "add", f"{PREFIX}-{name}")
        self.spaces.append(name)
        sh("ip", "-n", f"{PREFIX}-{name}", "link", "set", "lo", "up")

    def inside(self, name, *words, text=None):
        return sh("ip", "netns", "exec", f"{PREFIX}-{name}", *words, text=text)

    def sysctl(self, name, *values):
        self.inside(name, "sysctl", "-qw", *values)

    def wire(self, name, dev, address, other, far):
        sh("ip", "link", "add", dev, "netns", f"{PREFIX}-{name}", "type", "veth",
           "peer", "name", far, "netns", f"{PREFIX}-{other}")
        for at, end in ((name, dev), (other, far)):
            self.sysctl(at, f"net.ipv6.conf.{end}.disable_ipv6=1")
            self.inside(at, "ethtool", "-K", end, "tx", "off", "tso", "off", "gso", "off", "gro", "off")
            sh("ip", "-n", f"{PREFIX}-{at}", "link", "set", end, "up")
        sh("ip", "-n", f"{PREFIX}-{name}", "addr", "add", f"{address}/24", "dev", dev)

    def public(self, name):
        """A machine with an address of its own; returns this."""
        self.outer += 1
        address = f"10.79.0.{self.outer}"
        self.space(name)
        self.wire(name, "out", address, "switch", f"to{self.outer}")
        return address

    def behind(self, name, nat):
        """A machine in the network of a translator."""
        nat["hosts"] += 1
        address = f"{nat['lan']}.{nat['hosts'] + 1}"
        self.space(name)
        self.wire(name, "out", address, nat["name"], f"in{nat['hosts']}")
        sh("ip", "-n", f"{PREFIX}-{nat['name']}", "link", "set", f"in{nat['hosts']}", "master", "lan")
        sh("ip", "-n", f"{PREFIX}-{name}", "route", "add", "default", "via", f"{nat['lan']}.1")
        return address

    def translator(self, kind, outer=None):
        self.lans += 1
        name, lan = f"n{self.lans}", f"192.168.{self.lans}"
        address = self.behind(name, outer) if outer else self.public(name)
        space = f"{PREFIX}-{name}"
        sh("ip", "-n", space, "link", "add", "lan", "type", "bridge")
        self.sysctl(name, "net.ipv4.ip_forward=1", "net.ipv6.conf.lan.disable_ipv6=1")
        sh("ip", "-n", space, "addr", "add", f"{lan}.1/24", "dev", "lan")
        sh("ip", "-n", space, "link", "set", "lan", "up")
        hard = " fully-random" if kind in ("hard", "mapped") else ""
        self.inside(name, "nft", "-f", "-", text=f"""
            add table ip nat
            add chain ip nat in {{ type nat hook prerouting priority dstnat; }}
            add chain ip nat out {{ type nat hook postrouting priority srcnat; }}
            add rule ip nat out oifname "out" masquerade{hard}
            add table ip walls
            add chain ip walls through {{ type filter hook forward priority filter; }}
            add rule ip walls through ct status dnat accept
            add rule ip walls through iifname "out" ct state new drop
            add chain ip walls own {{ type filter hook input priority filter; }}
            add rule ip walls own ct state new drop
        """)
        return {"name": name, "lan": lan, "hosts": 0, "kind": kind, "address": address}

    def open_port(self, nat, inner, first, last):
        self.inside(nat["name"], "nft", "-f", "-", text=f"""
            add rule ip nat in ip daddr {nat["address"]} udp dport {first}-{last} dnat to {inner}
            add rule ip nat out ct status dnat oifname != "out" masquerade
        """)

    def start_switch(self):
        """Address resolution is never lost: all public machines know each other."""
        names = [n for n in self.spaces if "10.79.0." in sh("ip", "-n", f"{PREFIX}-{n}", "-4", "addr")]
        mac, at = {}, {}
        for name in names:
            mac[name] = self.inside(name, "cat", "/sys/class/net/out/address").strip()
            at[name] = re.search(r"10\.79\.0\.\d+", sh("ip", "-n", f"{PREFIX}-{name}", "-4", "addr"))[0]
        for name in names:
            lines = [f"neigh replace {at[n]} lladdr {mac[n]} dev out nud permanent" for n in names if n != name]
            sh("ip", "-n", f"{PREFIX}-{name}", "-batch", "-", text="\n".join(lines))
        ends = [f"to{n}" for n in range(1, self.outer + 1)]
        self.switch = subprocess.Popen(
            ["ip", "netns", "exec", f"{PREFIX}-switch", "python3", f"{HERE}/../switch.py", "20", LOSS, *ends])

    def end(self):
        if self.switch:
            self.switch.kill()
            self.switch.wait()
        for name in self.spaces:
            subprocess.run(["ip", "netns", "del", f"{PREFIX}-{name}"], capture_output=True)


def config(folder, name, port, lighthouse, told=None):
    """A file for nebula; `told` is an endpoint that a translator keeps open."""
    main = name == "l"
    return json.dumps({
        "pki": {"ca": f"{folder}/ca.crt", "cert": f"{folder}/{name}.crt", "key": f"{folder}/{name}.key"},
        "static_host_map": {} if main else {"10.42.0.1": [lighthouse]},
        "lighthouse": {"am_lighthouse": main, "interval": 10, "hosts": [] if main else ["10.42.0.1"],
                       **({"advertise_addrs": [told]} if told else {})},
        "listen": {"host": "0.0.0.0", "port": port},
        "punchy": {"punch": True, "respond": True},
        "relay": {"am_relay": main and RELAY, "use_relays": RELAY and not main,
                  "relays": ["10.42.0.1"] if RELAY and not main else []},
        "tun": {"dev": "nebula", "mtu": 1300}, "logging": {"level": "error"},
        "firewall": {"outbound": [{"port": "any", "proto": "any", "host": "any"}],
                     "inbound": [{"port": "any", "proto": "any", "host": "any"}]},
    })


def percentile(values, share):
    values = sorted(values)
    return values[max(0, -(-len(values) * share // 100) - 1)] if values else None


def watch(output, began):
    """When the first answer came, and the first over a way of their own, in ms."""
    first = direct = None
    for at, ms in re.findall(r"^\[([\d.]+)\] \d+ bytes .* time=([\d.]+) ms", output, re.M):
        since = (float(at) - began) * 1e3
        first = since if first is None else first
        direct = since if direct is None and float(ms) < DIRECT_MS else direct
    return first, direct


def build(ground, folder, cert):
    ground.public("l")
    hosts, number = [], 1
    for n, (one, other, same, _) in enumerate(CELLS, 1):
        nat = None
        for side, kind in (("a", one), ("b", other)):
            name, number = f"{side}{n}", number + 1
            if kind == "public":
                nat, address = None, ground.public(name)
            else:
                if not (same and nat):
                    outer = ground.translator("easy") if kind == "twice" else None
                    nat = ground.translator(kind, outer)
                address = ground.behind(name, nat)
            first = 20_000 if side == "a" else 30_000
            mapped = kind == "mapped"
            if mapped:
                ground.open_port(nat, address, first, first + 1_000)
            hosts.append((name, first, nat["address"] if mapped else None, f"10.42.0.{number}"))
    for name, overlay in [("l", "10.42.0.1"), *((h[0], h[3]) for h in hosts)]:
        sh(cert, "sign", "-ca-crt", f"{folder}/ca.crt", "-ca-key", f"{folder}/ca.key", "-name", name,
           "-ip", f"{overlay}/16", "-out-crt", f"{folder}/{name}.crt", "-out-key", f"{folder}/{name}.key")
    return hosts


def one_run(ground, folder, nebula, hosts, run):
    running, pings, found = [], [], []
    ports = [("l", 4_242, None), *((name, first + run, told) for name, first, told, _ in hosts)]
    try:
        for name, port, told in ports:
            file = f"{folder}/{name}.json"
            told = f"{told}:{port}" if told else None
            with open(file, "w", encoding="utf-8") as out:
                out.write(config(folder, name, port, "10.79.0.1:4242", told))
            command = ["ip", "netns", "exec", f"{PREFIX}-{name}", nebula, "-config", file]
            running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        time.sleep(5)
        for pair in range(len(CELLS)):
            (name, *_), (*_, overlay) = hosts[2 * pair], hosts[2 * pair + 1]
            command = ["ip", "netns", "exec", f"{PREFIX}-{name}", "ping", "-D", "-n", "-i", "0.05",
                       "-w", str(int(WAIT)), overlay]
            pings.append((time.time(), subprocess.Popen(command, stdout=subprocess.PIPE, text=True)))
        for began, ping in pings:
            found.append(watch(ping.communicate()[0], began))
    finally:
        for process in [*running, *(ping for _, ping in pings)]:
            process.kill()
            process.wait()
    return found


def main():
    nebula, cert = tool("nebula"), tool("nebula-cert")
    if not (nebula and cert):
        print("SKIPPED, MISSING: nebula and nebula-cert (GOFLAGS=-mod=mod go install "
              "github.com/slackhq/nebula/cmd/nebula@v1.9.5 github.com/slackhq/nebula/cmd/nebula-cert@v1.9.5, "
              "or NEBULA_DIR=folder)", file=sys.stderr)
        return
    missing = [name for name in ("ip", "nft", "ping", "ethtool") if not shutil.which(name)]
    if missing or os.getuid():
        sys.exit(f"needs root, and: {' '.join(missing) or 'nothing else'} (apt-get install iproute2 nftables "
                 "iputils-ping ethtool)")
    ground, folder = Ground(), tempfile.mkdtemp()
    try:
        sh(cert, "ca", "-name", "bench", "-out-crt", f"{folder}/ca.crt", "-out-key", f"{folder}/ca.key")
        hosts = build(ground, folder, cert)
        ground.start_switch()
        relays = "the lighthouse relays" if RELAY else "nobody relays"
        print(f"{nebula}, {relays}; {RUNS} runs, {LOSS} of packets lost between any two machines", flush=True)
        all_found = [one_run(ground, folder, nebula, hosts, run) for run in range(RUNS)]
    finally:
        ground.end()
        shutil.rmtree(folder)
    report(list(zip(*all_found)))


def report(found):
    number = lambda ms: "-" if ms is None else f"{ms:.0f}"
    print(f"{'hosts':24}reached direct runs  first answer, 95%  own way, 95% (ms from the first ping)")
    can = did = soon = 0
    for (one, other, same, possible), runs in zip(CELLS, found):
        firsts = [first for first, _ in runs if first is not None]
        directs = [direct for _, direct in runs if direct is not None]
        name = f"{one}, the same" if same else f"{one} - {other}"
        times = [number(percentile(values, share)) for values in (firsts, directs) for share in (50, 95)]
        print(f"{name:24}{len(firsts):7} {len(directs):6} {len(runs):4}  " + "  ".join(f"{t:>6}" for t in times))
        if possible:
            can, did = can + len(runs), did + len(directs)
            soon += sum(direct <= 1_000 for direct in directs)
    print(f"all that can be direct: {did} of {can}, {soon} within a second")


main()
