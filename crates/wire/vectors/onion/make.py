#!/usr/bin/env python3
"""Makes the vectors of this directory from docs/design/wire/circuits.md, without Shoal's code.

Uses the primitives of ../session/make.py, and needs what that needs. The hop's KEM randomness is
drawn, so a second run gives another created cell and other keys of its layer; everything else is
fixed. In the comments of the vectors 12*32 is the decimal byte 12, 32 times.
"""

import importlib.util
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
SPEC = importlib.util.spec_from_file_location("base", os.path.join(HERE, "../session/make.py"))
base = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(base)

CELL = 1400
TAGS = 3
UNIT = 1390 - 16 * TAGS


def tag_at(place):
    return 10 + UNIT + 16 * (place - 1)


def flag_at(place):
    return 10 + TAGS - place


def aes(key, block):
    return base.Cipher(base.algorithms.AES(key), base.modes.ECB()).encryptor().update(block)


def write_head(cell, key, index, counter):
    x = aes(key, bytes(cell[10:26]))
    mask = aes(key, x)
    about = struct.pack(">IQI", index, counter, 1)
    check = int.from_bytes(aes(key, base.xor(x, about))[:4], "big") >> 4
    both = (counter % (1 << 20)) << 28 | check
    head = struct.pack(">I", index) + both.to_bytes(6, "big")
    cell[:10] = base.xor(head, mask[:10])


def layer_key(split, suite, direction, lane):
    return base.kdf(split, "shoal v1 layer", bytes([suite, direction, lane]))


def seal(cell, key, suite, counter, start, place):
    end = tag_at(place)
    plain = bytes(cell[start:end])
    if suite == 1:
        nonce = bytes(4) + struct.pack(">Q", counter)
        sealed = base.AESGCM(key).encrypt(nonce, plain, b"")
    else:
        nonce = bytes(24) + struct.pack(">Q", counter)
        sealed = base.aegis_256(base.LANES[suite], key, nonce, plain, b"")
    cell[start : end + 16] = sealed


def write(name, about, data):
    with open(os.path.join(HERE, name + ".hex"), "w") as out:
        out.writelines(f"# {line}\n" for line in about)
        text = bytes(data).hex()
        out.writelines(text[i : i + 64] + "\n" for i in range(0, len(text), 64))


KEYS = "layer 14*32 forward, 15*32 backward; 3 tag places, place 3"


def forward(name, suite, lane, counter):
    """A cell from the origin of a circuit of one relay, at place 3, to it."""
    cell = bytearray(CELL)
    cell[10:] = bytes(i % 251 for i in range(CELL - 10))
    start = 10
    if lane == 1:
        start = flag_at(3)
        # Flag "yours", then an echo with the number 77.
        cell[start : start + 10] = bytes([1, 5]) + struct.pack(">Q", 77)
    seal(cell, layer_key(bytes([14] * 32), suite, 0, lane), suite, counter, start, 3)
    write_head(cell, bytes([12] * 32), 0x05000007 | lane << 23, counter)
    write(name, [forward.__doc__, f"{KEYS}; leg key 12*32, index 05000007",
                 f"suite {suite}, lane {lane}, counter {counter}"], cell)


def backward(name, suite, counter):
    """Cell from that relay back to the origin: a unit of bytes 7, sealed, with its tag."""
    cell = bytearray(b"\x07" * CELL)
    seal(cell, layer_key(bytes([15] * 32), suite, 1, 0), suite, counter, 10, 3)
    write(name, [backward.__doc__, KEYS, f"suite {suite}, counter {counter}"],
          cell[10 : tag_at(3) + 16])


def bond(responder):
    """What the responder shares with the node that asks, 3.0."""
    asker = base.Identity(bytes([3] * 32))
    return base.kdf(base.dh(asker.dh, base.public(responder.dh)), "shoal v1 leg bond")


def create():
    """The cell that asks a node to be a hop."""
    secret, leg = bytes([1] * 32), bytes([21] * 32)
    responder = base.Identity(bytes([2] * 32))
    static = base.public(responder.dh)
    ephemeral = base.X25519PrivateKey.from_private_bytes(bytes([4] * 32))
    kem = base.MLKEM768PrivateKey.from_seed_bytes(bytes([5] * 64))
    noise = base.Noise(b"Noise_NKhfs_25519+MLKEM768_AESGCM_SHA256", b"shoal " + base.VERSION + b"leg", static)
    first = base.public(ephemeral)
    noise.mix_hash(first)
    noise.mix_key(base.dh(ephemeral, static))
    first += noise.seal(kem.public_key().public_bytes_raw())
    # Leg secret, suites AES-256-GCM and AEGIS-256X4, processor, 3 places, place 2, ten minutes; a stop-and-go mix.
    first += noise.seal(leg + bytes([5, 4, 3, 2, 60]) + struct.pack(">BHH", 2, 50, 250))
    grant = struct.pack(">I32s", 0x05000007, bytes([12] * 32))
    shared = bond(responder)
    sealed = base.gcm_zero(base.kdf(leg, "shoal v1 leg grant", shared), grant)
    shown = struct.pack(">I", 77)
    asker = struct.pack(">IH", 3, 0)
    proof = base.kdf(shared, "shoal v1 leg proof", asker, bytes([9] * 12), shown, sealed, first)
    body = b"\x01" + base.VERSION + proof[:12] + shown + sealed + first
    body = body.ljust(CELL - 32, b"\0")
    cell = base.seal_request(secret, b"leg", responder.public, bytes([6] * 16), body)
    write("create", [create.__doc__, "network secret 01*32, responder's seed 02*32, R 06*16",
                     "asker 3.0 with seed 03*32; it shows the cookie 09*12; shown 77, ephemeral 04*32, "
                     "KEM seed 05*64",
                     "leg secret 21*32, suites 5, processor 4, place 2 of 3, 600 s, stop-and-go 5 ms, at most 25 ms",
                     "grant: index 05000007, leg key 12*32"], cell)
    created(noise, responder, base.public(ephemeral), kem.public_key())
    cookie(responder)


def created(noise, responder, initiator, kem):
    """The answer to that cell. The keys that follow from it are in hop-split."""
    ephemeral = base.X25519PrivateKey.from_private_bytes(bytes([10] * 32))
    second = base.public(ephemeral)
    noise.mix_hash(second)
    noise.mix_key(base.dh(ephemeral, initiator))
    shared, ciphertext = kem.encapsulate()
    second += noise.seal(ciphertext)
    noise.mix_key(shared)
    # The suite: AEGIS-256X4; the processor; the suites that the hop takes.
    second += noise.seal(b"\x03\x04\x05")
    grant = struct.pack(">I32s", 0x02000009, bytes([22] * 32))
    body = (b"\x02" + base.VERSION + grant + second).ljust(CELL - 48, b"\0")
    cell = base.seal_reply(bytes([1] * 32), b"leg", responder.public, bytes([6] * 16),
                           bytes([11] * 16), body,
                           base.kdf(bytes([21] * 32), "shoal v1 leg created", bond(responder)))
    write("created", [created.__doc__, "ephemeral 10*32, S 11*16, suite 3, processor 4, suites 5",
                      "grant: index 02000009, leg key 22*32"], cell)
    forth, back = noise.hkdf(b"")
    write("hop-split", ["The keys that follow from create and created: forward, then backward."],
          forth + back)


def cookie(responder):
    """The cookie reply to the cell in create."""
    body = (b"\x03" + base.VERSION + bytes([13] * 12)).ljust(CELL - 48, b"\0")
    cell = base.seal_reply(bytes([1] * 32), b"leg", responder.public, bytes([6] * 16),
                           bytes([11] * 16), body,
                           base.kdf(bond(responder), "shoal v1 leg cookie"))
    write("cookie", [cookie.__doc__, "S 11*16, cookie 13*12"], cell)


def main():
    create()
    forward("forward-gcm", 1, 0, 5)
    forward("forward-aegis", 3, 0, (1 << 20) + 3)
    forward("control-aegis", 3, 1, 9)
    backward("backward-gcm", 1, 70)
    backward("backward-aegis", 3, 71)
    # The leg secret behind a hop.
    write("next-leg", ["The leg secret behind the hop of the other vectors."],
          base.kdf(bytes([14] * 32), "shoal v1 next leg", bytes([15] * 32)))


if __name__ == "__main__":
    main()
