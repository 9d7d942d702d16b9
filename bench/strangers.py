#!/usr/bin/env python3
"""Sends packets of strangers to a registrar and its node. bench/join.sh starts this script.

strangers.py IP DOOR_PORT NODE_PORT COUNT SECONDS

The script first records, for SECONDS, the frames that `shoal up` sends from here with an invite of
another network. Then it sends COUNT datagrams of four kinds in turn: a recorded frame, one with a
changed byte, noise of a frame's size to the registrar, and noise to the node. It prints the number
of each kind.
"""
import os
import random
import socket
import sys
import time


def knocks(door, seconds):
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    tap.settimeout(0.2)
    found, end = set(), time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            frame = tap.recv(65536)
        except socket.timeout:
            continue
        # Ethernet 14, IPv4 20, UDP 8
        if frame[12:14] == b"\x08\x00" and frame[23] == 17:
            if int.from_bytes(frame[36:38], "big") == door:
                found.add(frame[42:])
    return sorted(found)


def main():
    ip, door, node, count = sys.argv[1], *map(int, sys.argv[2:5])
    heard = knocks(door, float(sys.argv[5]))
    if not heard:
        sys.exit("no frame of shoal up with a foreign invite was recorded")
    chance = random.Random(1)
    to_door = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    to_door.connect((ip, door))
    to_node = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    to_node.connect((ip, node))
    noise = os.urandom(1 << 16)
    sent = {"knock": 0, "changed": 0, "noise": 0, "node": 0}
    for n in range(count):
        at = chance.randrange(60000)
        if n % 4 == 0:
            kind, to, data = "knock", to_door, heard[n // 4 % len(heard)]
        elif n % 4 == 1:
            knock = heard[n // 4 % len(heard)]
            i = at % len(knock)
            kind, to = "changed", to_door
            data = knock[:i] + bytes([knock[i] ^ 1]) + knock[i + 1 :]
        elif n % 4 == 2:
            kind, to, data = "noise", to_door, noise[at : at + (192, 1200, 576, 700)[n // 4 % 4]]
        else:
            kind, to, data = "node", to_node, noise[at : at + (192, 576, 1440, 1400)[n // 4 % 4]]
        try:
            to.send(data)
            sent[kind] += 1
        except OSError:
            pass  # the kernel reports a closed port; the datagram is not counted as sent
    print(" ".join(f"{kind}={n}" for kind, n in sent.items()), f"knocks={len(heard)}")


main()
