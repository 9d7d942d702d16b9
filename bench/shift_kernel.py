#!/usr/bin/env python3
"""Tests this kernel's support for shifting addresses: the questions of docs/design/decisions/shifting-kernel.md.

Run as root: bench/shift_kernel.py. The script makes two network namespaces and removes them.
"""

import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import time

A, B = f"shoalshift{os.getpid()}a", f"shoalshift{os.getpid()}b"
PORT = 7400
SOL_UDP, UDP_SEGMENT, UDP_GRO = 17, 103, 104
IPV6_FREEBIND, IPV6_PKTINFO, IPV6_RECVPKTINFO = 78, 50, 49
SO_ATTACH_FILTER, SO_ATTACH_REUSEPORT_CBPF, SO_MEMINFO = 26, 51, 55
SKF_NET_OFF = 0xFFF00000
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000


def sh(command, check=True):
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=20)
    if check and done.returncode:
        sys.exit(f"{command}: {done.stderr}")
    return done.stdout.strip()


def enter(name):
    with open(f"/var/run/netns/{name}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


def udp(port=PORT, freebind=True, reuse=False):
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    if reuse:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if freebind:
        s.setsockopt(socket.IPPROTO_IPV6, IPV6_FREEBIND, 1)
    s.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVPKTINFO, 1)
    s.setsockopt(SOL_UDP, UDP_GRO, 1)
    s.bind(("::", port))
    s.settimeout(1)
    return s


def send(s, source, to, data, segment=0):
    info = socket.inet_pton(socket.AF_INET6, source) + struct.pack("I", 0)
    notes = [(socket.IPPROTO_IPV6, IPV6_PKTINFO, info)]
    if segment:
        notes.append((SOL_UDP, UDP_SEGMENT, struct.pack("H", segment)))
    return s.sendmsg([data], notes, 0, (to, PORT))


def receive(s):
    data, notes, _, source = s.recvmsg(65536, 512)
    to = segment = None
    for level, kind, value in notes:
        if (level, kind) == (socket.IPPROTO_IPV6, IPV6_PKTINFO):
            to = socket.inet_ntop(socket.AF_INET6, value[:16])
        if (level, kind) == (SOL_UDP, UDP_GRO):
            segment = struct.unpack("i", value[:4])[0]
    return len(data), segment, source[0], to


def tells(what, outcome):
    print(f"{what:<66} {outcome}", flush=True)


def in_child(name, work):
    """Runs work in a process inside a namespace. Returns the process id."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            enter(name)
            work()
            code = 0
        except BaseException as error:  # noqa: BLE001 - printed, and the process ends
            print(f"  in {name}: {type(error).__name__}: {error}", flush=True)
        os._exit(code)
    return child


def program(instructions):
    raw = b"".join(struct.pack("HBBI", *each) for each in instructions)
    buffer = ctypes.create_string_buffer(raw)
    return buffer, struct.pack("HxxxxxxP", len(instructions), ctypes.addressof(buffer))


def destination_filter(low):
    """A filter that accepts only datagrams whose destination ends in this 64-bit identifier."""
    high, low = low >> 32, low & 0xFFFFFFFF
    return program([
        (0x20, 0, 0, SKF_NET_OFF + 32), (0x15, 0, 3, high),
        (0x20, 0, 0, SKF_NET_OFF + 36), (0x15, 0, 1, low),
        (0x06, 0, 0, 0xFFFFFFFF), (0x06, 0, 0, 0),
    ])


def set_up():
    for name in (A, B):
        sh(f"ip netns add {name}")
        sh(f"ip -n {name} link set lo up")
    sh(f"ip link add veth0 netns {A} type veth peer name veth0 netns {B}")
    for name, host in ((A, 1), (B, 2)):
        sh(f"ip netns exec {name} sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.veth0.accept_dad=0")
        sh(f"ip -n {name} addr add fd00::{host}/64 dev veth0 nodad")
        sh(f"ip -n {name} link set veth0 up")
    sh(f"ip -n {A} route add fd00:b::/64 via fd00::2")
    sh(f"ip -n {B} route add fd00:a::/64 via fd00::1")
    time.sleep(1.5)


def routed():
    def both(with_route, freebind):
        def work():
            if with_route:
                sh("ip -6 route add local fd00:b::/64 dev lo", check=False)
            s = udp()
            try:
                print("   ", *[f"received {receive(s)}" for _ in range(1)], flush=True)
            except socket.timeout:
                print("    nothing arrived", flush=True)
        child = in_child(B, work)
        time.sleep(0.3)

        def go():
            s = udp(freebind=freebind)
            send(s, "fd00:a::1:2:3:4", "fd00:b::5:6:7:8", b"x" * 14400, 1440)
        other = in_child(A, go)
        os.waitpid(other, 0)
        os.waitpid(child, 0)

    tells("1a foreign source address, without FREEBIND:", "")
    both(False, False)
    tells("1b with FREEBIND; receiver without a local route:", "")
    both(False, True)
    tells("1c with FREEBIND and an AnyIP route; 10 segments in one send:", "")
    both(True, True)
    sh(f"ip -n {B} -6 route del local fd00:b::/64 dev lo", check=False)


def route_ends():
    def with_tun():
        tun = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", b"shift0", IFF_TUN | IFF_NO_PI))
        sh("ip link set shift0 up")
        sh("ip -6 route add local fd00:b::/64 dev shift0")
        s = udp()
        try:
            print("    on a TUN device: received", receive(s), flush=True)
        except socket.timeout:
            print("    on a TUN device: nothing arrived", flush=True)
        time.sleep(60)
    child = in_child(B, with_tun)
    time.sleep(0.8)
    os.waitpid(in_child(A, lambda: send(udp(), "fd00:a::9", "fd00:b::9", b"x" * 2880, 1440)), 0)
    time.sleep(0.3)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    time.sleep(0.2)
    left = sh(f"ip -n {B} -6 route show table local | grep fd00:b", check=False)
    tells("2a local route on a TUN device after SIGKILL of its owner:", left or "removed")

    sh(f"ip -n {B} -6 route add local fd00:b::/64 dev lo expires 2", check=False)
    shown = sh(f"ip -n {B} -6 route show table local | grep fd00:b", check=False)
    tells("2b local route on lo with `expires 2`, immediately:", shown or "refused")
    time.sleep(3)
    used = sh(f"ip -n {B} -6 route get fd00:b::77", check=False)
    tells("   result of a route lookup after 3 s:", used.split(" table")[0])
    for _ in range(40):
        left = sh(f"ip -n {B} -6 route show table local | grep fd00:b", check=False)
        if not left:
            break
        time.sleep(1)
    tells("   entry in the table after 3 to 43 s:", left or "removed")
    sh(f"ip -n {B} -6 route del local fd00:b::/64 dev lo", check=False)


def neighbours():
    count = lambda: len(sh(f"ip -n {A} -6 neigh show dev veth0 | grep -v fe80 | grep -v FAILED",
                           check=False).splitlines())
    sh(f"ip -n {A} neigh flush dev veth0")
    sh(f"ip -n {B} -6 route add local fd00:b::/64 dev lo")

    def sends():
        s = udp()
        for i in range(50):
            send(s, f"fd00:b::{i + 1:x}", "fd00::1", b"x" * 100)
    os.waitpid(in_child(B, sends), 0)
    time.sleep(0.5)
    tells("3a neighbour entries at A after 50 sources of a routed prefix:", count())
    sh(f"ip -n {B} -6 route del local fd00:b::/64 dev lo")
    # Segment mode: addresses of the segment itself, on the interface.
    for i in range(20):
        sh(f"ip -n {B} addr add fd00::b:{i + 1:x}/128 dev veth0 nodad noprefixroute valid_lft 8 preferred_lft 8")

    def from_segment():
        s = udp()
        for i in range(20):
            send(s, f"fd00::b:{i + 1:x}", "fd00::1", b"x" * 100)
    os.waitpid(in_child(B, from_segment), 0)
    time.sleep(0.5)
    tells("3b neighbour entries at A after 20 sources on the segment:", count())

    def answers():
        s = udp()
        for i in range(20):
            send(s, "fd00::1", f"fd00::b:{i + 1:x}", b"x" * 100)
    os.waitpid(in_child(A, answers), 0)
    time.sleep(0.5)
    tells("3c neighbour entries at A after it answered all 20:", count())

    def foreign():
        s = udp()
        send(s, "fd00::1", "fd00::c:1", b"x" * 100)
    sh(f"ip -n {B} -6 route add local fd00::c:0/112 dev lo")
    os.waitpid(in_child(A, foreign), 0)
    time.sleep(3.5)
    says = sh(f"ip -n {A} -6 neigh show fd00::c:1 dev veth0", check=False)
    tells("3d solicitation for an AnyIP address of the segment:", says or "no entry, so no answer")
    time.sleep(5)
    left = sh(f"ip -n {B} addr show dev veth0 | grep -c fd00::b", check=False)
    tells("3e addresses left after their lifetime of 8 s:", left)


def just_up():
    for dad in (1, 0):
        sh(f"ip link add veth1 netns {A} type veth peer name veth1 netns {B}")
        for name, host in ((A, 1), (B, 2)):
            sh(f"ip netns exec {name} sysctl -qw net.ipv6.conf.all.accept_dad={dad} "
               f"net.ipv6.conf.veth1.accept_dad={dad}")
            sh(f"ip -n {name} addr add fd01::{host}/64 dev veth1 nodad")

        def comes():
            s = udp(freebind=False)
            s.settimeout(6)
            data = s.recvmsg(64)[0]
            took = time.time() - struct.unpack("d", data)[0]
            tells(f"3f delay with AnyIP source, interface just up, accept_dad {dad}:", f"{took:.2f} s")
        child = in_child(B, comes)
        time.sleep(0.3)
        for name in (A, B):
            sh(f"ip -n {name} link set veth1 up")

        def go():
            s, began = udp(), time.time()
            while time.time() < began + 5:
                send(s, "fd00:a::7", "fd01::2", struct.pack("d", began))
                time.sleep(0.1)
        other = in_child(A, go)
        os.waitpid(child, 0)
        os.waitpid(other, 0)
        sh(f"ip -n {A} link del veth1")


def filters():
    sh(f"ip -n {B} -6 route add local fd00:b::/64 dev lo")

    def work():
        s = udp()
        keep, filter_ = destination_filter(0x0001000200030004)
        s.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, filter_)
        arrived = []
        s.settimeout(1.5)
        try:
            while True:
                arrived.append(receive(s)[:2] + (receive.__name__,))
        except socket.timeout:
            pass
        info = s.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36)
        drops = struct.unpack("9I", info)[8]
        print(f"    accepted {[a[:2] for a in arrived]}, SO_MEMINFO drops {drops}", flush=True)
        began = time.perf_counter()
        for _ in range(1000):
            s.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, filter_)
        each = (time.perf_counter() - began) * 1000
        print(f"    replacing the filter takes {each:.1f} us (including Python's call)", flush=True)
    child = in_child(B, work)
    time.sleep(0.3)

    def go():
        s = udp()
        for host in ("1:2:3:4", "1:2:3:5", "9:2:3:4", "1:2:3:4"):
            send(s, "fd00:a::1", f"fd00:b::{host}", b"x" * 14400, 1440)
    os.waitpid(in_child(A, go), 0)
    os.waitpid(child, 0)
    tells("4a cBPF by destination (4 runs of 10 sent, 2 of them matching):", "above")

    def reuse():
        sockets = [udp(reuse=True) for _ in range(3)]
        keep, steer = program([(0x20, 0, 0, SKF_NET_OFF + 36), (0x94, 0, 0, 3), (0x16, 0, 0, 0)])
        try:
            sockets[0].setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, steer)
        except OSError as error:
            print("    refused:", error, flush=True)
        time.sleep(1)
        for i, s in enumerate(sockets):
            s.settimeout(0.1)
            got = []
            try:
                while True:
                    got.append(receive(s)[3])
            except socket.timeout:
                pass
            print(f"    socket {i}: {got}", flush=True)
    child = in_child(B, reuse)
    time.sleep(0.4)

    def spread():
        for port in range(6):
            s = udp(port=9000 + port)
            for i in range(3):
                send(s, f"fd00:a::{port + 1}", f"fd00:b::{i + 1}", b"x" * 100)
    os.waitpid(in_child(A, spread), 0)
    os.waitpid(child, 0)
    tells("4b reuseport by the destination's last word, 6 sources:", "above")
    sh(f"ip -n {B} -6 route del local fd00:b::/64 dev lo")


def main():
    if os.geteuid() != 0:
        sys.exit("bench/shift_kernel.py needs root, since it makes network namespaces")
    print("kernel", os.uname().release)
    try:
        set_up()
        routed()
        route_ends()
        neighbours()
        just_up()
        filters()
    finally:
        for name in (A, B):
            sh(f"ip netns delete {name}", check=False)


main()
