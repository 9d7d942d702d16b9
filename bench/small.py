#!/usr/bin/env python3
"""Sends or receives small UDP datagrams, many per system call (UDP_SEGMENT, UDP_GRO), as programs with
many peers do. bench/ip_small.sh starts this script.

small.py receive ADDRESS SECONDS             prints the number of received datagrams
small.py send ADDRESS SECONDS RATE PAYLOAD   sends RATE datagrams per second, prints their number
"""
import socket
import sys
import time

# Constants of linux/udp.h and asm-generic/socket.h.
SEGMENT, GRO, SEND_BUFFER, RECEIVE_BUFFER = 103, 104, 32, 33
# The kernel splits more than 44 before they reach the interface.
PORT, MOST = 7_777, 40


def receive(address, seconds):
    sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, RECEIVE_BUFFER, 16 << 20)
    sock.setsockopt(socket.IPPROTO_UDP, GRO, 1)
    sock.bind((address, PORT))
    sock.settimeout(0.2)
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        try:
            data, ancillary, _, _ = sock.recvmsg(65_536, 64)
        except socket.timeout:
            continue
        size = len(data)
        for level, kind, value in ancillary:
            if (level, kind) == (socket.IPPROTO_UDP, GRO):
                size = int.from_bytes(value[:4], sys.byteorder)
        count += -(-len(data) // size)
    print(count)


def send(address, seconds, rate, payload):
    sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_UDP, SEGMENT, payload)
    sock.setsockopt(socket.SOL_SOCKET, SEND_BUFFER, 4 << 20)
    sock.connect((address, PORT))
    data, began, count = bytes(payload * MOST), time.monotonic(), 0
    while (now := time.monotonic() - began) < seconds:
        while count < now * rate:
            count += sock.send(data) // payload
        time.sleep(MOST / rate / 2)
    print(count)


words = sys.argv[2:]
if sys.argv[1] == "receive":
    receive(words[0], float(words[1]))
else:
    send(words[0], float(words[1]), int(words[2]), int(words[3]))
