#!/usr/bin/env python3
"""A switch with delay and loss, for kernels without netem. bench/join.sh starts this script.

switch.py DELAY_MS LOSS INTERFACE...   runs in the namespace of the interfaces until SIGTERM

Each frame leaves DELAY_MS after it came, through the interface behind which its destination was
seen, or else through all others. A share LOSS of the frames is lost, the same ones in each run. The
machines' interfaces must fill in checksums (ethtool -K IF tx off) and not aggregate packets.
"""
import heapq
import random
import select
import socket
import sys
import time

# Constants of Linux that the module lacks.
SOL_PACKET, IGNORE_OUTGOING, SO_RCVBUFFORCE = 263, 23, 33
BUFFER = 8 << 20


def open_port(name):
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    port.bind((name, 0))
    port.setsockopt(SOL_PACKET, IGNORE_OUTGOING, 1)
    port.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
    port.setblocking(False)
    return port


def main():
    delay, loss, names = float(sys.argv[1]) / 1e3, float(sys.argv[2]), sys.argv[3:]
    ports = [open_port(name) for name in names]
    by_number = {port.fileno(): n for n, port in enumerate(ports)}
    watch = select.poll()
    for port in ports:
        watch.register(port, select.POLLIN)
    chance, seen, due, count = random.Random(1), {}, [], 0
    while True:
        now = time.monotonic()
        while due and due[0][0] <= now:
            _, _, n, frame = heapq.heappop(due)
            to = seen.get(frame[:6])
            for other in [to] if to is not None else (m for m in range(len(ports)) if m != n):
                try:
                    ports[other].send(frame)
                except OSError:
                    pass  # a full queue loses frames, as a switch does
        wait = max(0.0, due[0][0] - time.monotonic()) * 1e3 if due else 100
        for number, _ in watch.poll(wait):
            n = by_number[number]
            for _ in range(64):
                try:
                    frame = ports[n].recv(65536)
                except OSError:
                    break
                seen[frame[6:12]] = n
                if chance.random() >= loss:
                    count += 1
                    heapq.heappush(due, (time.monotonic() + delay, count, n, frame))


main()
